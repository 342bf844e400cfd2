"""Commands read checkpoints that are larger than the memory they may take; sparse files are as good as others."""

import shutil

import pytest

from hostile_stores import mend, valid
from odd_checkpoints import sparse_leaf
from small_rooms import in_a_small_room
from stores import flip, invoke

LEAF_BYTES = 512 << 20
ROOM_BYTES = 192 << 20

COMMANDS = {
    "verify RUN": 0,
    "verify RUN --cold": 0,
    "diff RUN RUN": 0,
    "diff RUN OTHER": 1,
    "diff RUN OTHER --quick": 1,
    "show RUN --all": 0,
    "ls RUN": 0,
    "copy RUN OUT/copy": 0,
    "copy RUN OUT/place": 0,
    "verify OUT/place": 0,
    "export OUT/place --all -o OUT/x.npz": 0,
    "export RUN --all -o OUT/x.npz --force": 0,
    "export RUN --all -o OUT/x.safetensors": 0,
    "export RUN --all -o OUT/x.pt": 0,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with a checkpoint of half a GiB, whole, of which nearly all is a hole; the last byte differs."""
    root = tmp_path_factory.mktemp("sparse")
    folder = valid(root / "run", steps=1)
    sparse_leaf(folder, LEAF_BYTES)
    mend(folder)
    shutil.copytree(root / "run", root / "other", symlinks=True)
    other = root / "other/checkpoints" / folder.name
    flip(max(other.glob("*.safetensors"), key=lambda path: path.stat().st_size))
    mend(other)
    (root / "out/place/claims").mkdir(parents=True)
    yield root
    shutil.rmtree(root)


@pytest.mark.parametrize("asked", COMMANDS)
def test_a_command_takes_less_memory_than_the_largest_leaf(asked, runs):
    """Its address space grows by less than half of one leaf."""
    words = (
        asked.replace("RUN", str(runs / "run")).replace("OTHER", str(runs / "other")).replace("OUT", str(runs / "out"))
    )

    def law():
        told = invoke(*words.split())
        return [str(told.exit_code), told.stderr[-300:]]

    assert [str(COMMANDS[asked]), ""] == in_a_small_room(law, ROOM_BYTES)


def test_the_room_is_too_small_for_the_leaf():
    """So that the law above can fail."""
    found = in_a_small_room(lambda: [str(len(bytearray(LEAF_BYTES)))], ROOM_BYTES)
    assert ["it did not end: too much time or memory"] == found
