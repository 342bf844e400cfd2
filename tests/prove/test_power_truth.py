"""The model of a loss of power is checked against the truth: a real file system on a disk whose writes are known.

The recorded saves of tests/power.py are done again on it. At moments in between, also in the middle of a sync, the disk
loses any writes that no flush had covered, and is mounted once more: its journal is replayed. What is there then keeps
the promise, and is a state that the model allows. tests/flushes.py makes such disks.
"""

import itertools
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from test_power_loss import promised, story_of

from faults import scratched
from flushes import Disk, looped, mounted
from holdfast.errors import HoldfastError
from needed import needs
from power import SYNCS, Made, Medium, Moment, replayed

pytestmark = needs("strace", "losetup", "mkfs.ext4", "fusermount3", root=True)
MODES = ("data=ordered", "data=writeback")


class Between(NamedTuple):
    """A call, and what the model knew before it."""

    begin: int  # in the disk's log
    moment: Moment
    said: int  # the newest step that was saved


Without = Callable[[list[Made]], list[Made]]


def everything(made: list[Made]) -> list[Made]:
    return made


def without_syncs(made: list[Made], *, of_directories: bool) -> list[Made]:
    """All calls but the syncs of directories, or of files."""
    kept, directory = [], dict[int, bool]()
    for each in made:
        if each.name == "openat":
            directory[each.result] = "O_DIRECTORY" in each.flags
        if each.name not in SYNCS or directory[each.descriptor] != of_directories:
            kept.append(each)
    return kept


def played(disk: Disk, story: str, place: Path, without: Without) -> tuple[Medium, list[Between]]:
    """Do the story's calls again on that disk."""
    made = without(story_of(place, story).made)
    found = []
    with disk.mounted() as mount:
        (mount / "again").mkdir()
        medium = Medium(mount / "again")
        for said, _ in replayed(made, place / "real", mount / "again", medium):
            found.append(Between(disk.position(), medium.moment(), said))
        medium.close()
    return medium, found


def really_loses_power(story: str, mode: str, count: int, seed: int, without: Without = everything) -> tuple[int, int]:
    """How many disks were opened again, and how many of them had lost writes."""
    chosen, lossy = random.Random(seed), 0
    with scratched("truth") as place:
        disk = Disk(place, mode)
        medium, found = played(disk, story, place, without)
        assert disk.flushes() > 5
        pairs = itertools.pairwise(found)
        cuts = [(at, *pair) for pair in pairs for at in disk.between(pair[0].begin, pair[1].begin)]
        tried = chosen.sample(cuts, min(count, len(cuts)))
        for at, before, after in tried:
            lossy += disk.lost(at, chosen, place / "left") > 0
            with looped(place / "left") as device, mounted(device, place / "found", mode) as mount:
                if (mount / "again").exists():
                    left = medium.known_as(mount / "again")
                    assert "" in (before.moment.forbids(left), after.moment.forbids(left))
                promised(mount / "again" / "run", before.said, story)
    return len(tried), lossy


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("story", ["a store", "two ranks", "a run"])
def test_what_a_real_file_system_leaves_is_whole_and_the_model_allows_it(story, mode, tally):
    """Any writes since the last flush are lost, and the journal is replayed: the promise holds there, too."""
    tried, lossy = really_loses_power(story, mode, 150, seed=16)
    tally("Power is lost on ext4, and any writes that no flush had covered", tried=tried, observed=lossy)
    assert tried > 100
    assert lossy > 20


@pytest.mark.parametrize("of_directories", [False, True], ids=["files", "directories"])
def test_a_real_disk_notices_syncs_that_are_missing(of_directories):
    """Without the syncs of files, or of directories, a real file system leaves less than was promised."""
    with pytest.raises((AssertionError, HoldfastError)):
        really_loses_power("a store", MODES[0], 150, 2, partial(without_syncs, of_directories=of_directories))
