"""Every length to which a file of another program can be cut, and every bit of its tensors."""

import shutil

import pytest

import foreign_corpus as corpus
from holdfast.errors import StoreError
from holdfast.foreign import table
from holdfast.foreign.checkpoint import ForeignCheckpoint

UNNAMED = {"config.json"}  # nothing of a checkpoint
NO_CRC = {".metadata"}
MOST = 3000  # places of one file


def reported(path):
    try:
        return next(ForeignCheckpoint(path).problems(), None) is not None
    except StoreError:
        return True  # unreadable, and why


def places(data):
    return range(0, len(data), 1 + len(data) // MOST)


def bits(leaves):
    return {key: (leaf.dtype, leaf.shape, bytes(leaf.read())) for key, leaf in leaves.items()}


@pytest.mark.parametrize("name", corpus.WRITERS)
def test_every_cut_and_every_flipped_bit_is_reported(tmp_path, tally, name):
    """Each byte less, in each file; where the format has a CRC-32, each byte of the file changed by one bit in turn.

    Of a large file these are 3,000 places. A bit may go unnoticed only where nothing is read from it: then tensors and
    values are what they were.
    """
    made = corpus.written(tmp_path / "whole", name)
    assert not reported(made)
    whole, tree = bits(table.read(made).leaves), table.read(made).tree
    for file in [each for each in corpus.files(made) if each.name not in UNNAMED]:
        data = file.read_bytes()
        unseen = [length for length in places(data) if _changed(file, data[:length]) and not reported(made)]
        assert not unseen, (file, unseen)
        tally("Another program's file is cut", tried=len(places(data)))
        if name in corpus.PROVEN and file.name not in NO_CRC:
            seen = harmless = 0
            for place in places(data):
                changed = bytearray(data)
                changed[place] ^= 1 << place % 8
                _changed(file, changed)
                if reported(made):
                    seen += 1
                else:
                    assert (whole, tree) == (bits(table.read(made).leaves), table.read(made).tree), (file, place)
                    harmless += 1
            assert seen > 500
            tally("A bit of another program's file flips", tried=seen + harmless, observed=seen)
        file.write_bytes(data)
    shutil.rmtree(tmp_path / "whole")


def _changed(file, data):
    file.write_bytes(data)
    return True
