"""Every bit of a signed manifest, turned over by somebody who makes its own digest right again."""

import re
from contextlib import suppress

import numpy as np
import pytest

from holdfast.errors import StoreError
from holdfast.store import format
from holdfast.store.signing import Signer
from holdfast.store.store import Store
from signatures import key_pair


def sealed(text):
    """The manifest with its own digest right again, as anybody can make it."""
    blank = re.sub(rb'("digest": ")[0-9a-f]{32}', rb"\g<1>" + b"0" * 32, text, count=1)
    return blank.replace(b"0" * 32, format.digest(blank).encode(), 1)


def test_no_bit_of_a_signed_manifest_can_be_changed(tmp_path, tally):
    """A reader that has the key refuses each. One without it takes many: so their own digest was right."""
    signer = Signer(key_pair(tmp_path))
    store = Store(tmp_path / "run", signer=signer)
    path = store.save({"weights": np.arange(300.0), "n": [1, 2.5, "text"]}, step=3, metrics={"acc": 0.5}).path
    text = (path / "manifest.json").read_bytes()
    assert sealed(text) == text
    own = range(text.index(b'"digest": "') + 11, text.index(b'"digest": "') + 43)
    places = [(at, bit) for at in range(len(text)) if at not in own for bit in range(8)]
    refused = taken = 0
    for at, bit in places:
        forged = sealed(text[:at] + bytes([text[at] ^ (1 << bit)]) + text[at + 1 :])
        with pytest.raises(StoreError):  # another version is no damage
            format.decode(forged, "here", signer.key)
        refused += 1
        with suppress(StoreError):
            format.decode(forged, "here")
            taken += 1
    assert taken > 1000
    tally("A bit of a signed manifest is changed, and its digest made right", tried=len(places), survived=refused)
