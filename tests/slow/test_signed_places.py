"""Signed runs and their mirrors: a copy keeps its signature, and a forged one is not taken."""

import shutil

import pytest

from holdfast import Every, Last, Run
from holdfast.errors import Untrusted
from holdfast.store import format
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.signing import Signer, public_key
from signatures import key_pair, with_quick_digests
from toy import Toy, names

MANIFEST = "manifest.json"


def train(path, place, steps, key):
    toy = Toy()
    with Run(path, {"toy": toy}, every=Every(steps=1), keep=Last(9), mirror=place, signed=key) as run:
        for step in run.steps(steps):
            toy.learn(step)
    return toy.value


@pytest.fixture
def sent(tmp_path):
    """A signed run whose directory is gone; the place has its three checkpoints. Its key, and the newest copy."""
    key = key_pair(tmp_path)
    (tmp_path / "mnt").mkdir()
    train(tmp_path / "run", tmp_path / "mnt" / "place", 3, key)
    shutil.rmtree(tmp_path / "run")
    return key, next((tmp_path / "mnt" / "place").glob("checkpoints/*/step-000000003"))


def test_a_run_begins_from_a_copy_that_its_key_has_signed(tmp_path, sent):
    """The copies at the place verify without the run."""
    key, copy = sent
    assert not [*Checkpoint(copy, key=public_key(key.with_suffix(".pub"))).problems()]
    train(tmp_path / "run", tmp_path / "mnt" / "place", 5, key)
    assert names(tmp_path / "run")[0] == "step-000000003"


@pytest.mark.parametrize("signer", ["nobody", "another key"])
def test_a_forged_copy_does_not_come_here(tmp_path, sent, signer):
    """The start is refused and looks for no older copy, and the run's directory gets no checkpoint."""
    key, copy = sent
    if signer == "nobody":
        text = format.encode(with_quick_digests(copy))
    else:
        text = format.encode(Checkpoint(copy).manifest, Signer(key_pair(tmp_path, "other", seed=2)))
    (copy / MANIFEST).write_bytes(text)
    with pytest.raises(Untrusted, match="signed"):
        train(tmp_path / "run", tmp_path / "mnt" / "place", 5, key)
    assert [] == names(tmp_path / "run")
