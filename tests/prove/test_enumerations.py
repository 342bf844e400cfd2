"""Whole enumerations of what `make test` tries in strides: every change to a file, each end, ghost and refusal."""

import errno

import pytest
import test_collective_faults
import test_collective_killed
import test_crash
import test_defaultdicts
import test_dtensor
import test_every_byte
import test_fence
import test_foreign_hostile
import test_forgotten
import test_pending_gradients
import test_rows
import test_stale_files
import test_torch_processes
from test_crash import ENGINES, STORIES
from test_defaultdicts import registered  # noqa: F401

from faults import BROKEN, FULL, requests, scratched

GHOST = "An attempt that was superseded wakes up"
EVERY_PHASE = range(len(test_fence.PHASES))


def name_of(each):
    return getattr(each, "__name__", None)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tell", STORIES, ids=name_of)
def test_every_end_of_every_story_leaves_the_old_or_the_new(tally, tell, engine):
    """As `test_crash` says, of all pictures that any end leaves."""
    tally("A kill or a loss of power at a change that the store makes", tried=test_crash.crashes(tell, engine))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("code", [FULL, BROKEN], ids=["ENOSPC", "EIO"])
def test_a_refusal_of_every_change_leaves_the_old_or_the_new(tally, code, engine):
    """As `test_crash` says, of all changes of all stories."""
    for tell in STORIES:
        tally(
            f"{errno.errorcode[code]} at a change that the store makes", tried=test_crash.refusals(tell, engine, code)
        )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("phase", EVERY_PHASE)
def test_every_ghost_is_superseded(tally, phase, engine):
    """As `test_fence` says, before each look and change; also in the requests of a save in flight."""
    with ENGINES[engine]():
        tally(GHOST, tried=test_fence.ghosts(test_fence.wake_after, phase))


@pytest.mark.parametrize("phase", EVERY_PHASE)
def test_every_ghost_with_a_save_in_flight_is_superseded(tally, phase):
    """As `test_fence` says, before each call of the thread that saves."""
    with requests():
        tally(GHOST, tried=test_fence.ghosts(test_fence.wake_writer, phase))


def test_every_window_of_a_claim(tally):
    """As `test_fence` says: each change of a claim, and pairs of a ghost's and a successor's changes."""
    tally(GHOST, tried=test_fence.windows() + test_fence.pairs())


@pytest.mark.parametrize("kind", test_collective_faults.KINDS)
@pytest.mark.parametrize("rank", [0, 2])
def test_every_change_of_a_rank_may_fail_or_be_fenced(tmp_path, tally, kind, rank):
    """As `test_collective_faults` says: each change of that rank, with each error and rule."""
    for turn in range(len(test_collective_faults.WAYS)):
        refused = test_collective_faults.disk_fails(kind, tmp_path / f"disk-{turn}", rank, 1, turn)
        tally("The disk fails at a change that one of several ranks makes", tried=refused)
    tally(GHOST, tried=test_collective_faults.is_fenced(kind, tmp_path / "fenced", rank))


@pytest.mark.parametrize("kind", test_collective_faults.KINDS)
def test_every_loss_of_power_in_a_save_of_several_ranks(tally, kind):
    """As `test_collective_faults` says, of every picture that it may leave."""
    tally("A loss of power in a save of several ranks", tried=test_collective_faults.power_is_lost(kind))


def test_many_flipped_bits_are_all_found_out(tally):
    """As `test_every_byte` says, ten thousand of them."""
    with scratched("flips") as base:
        tried, missed = test_every_byte.flips(base, 10_000, seed=3)
    tally("A flipped bit", tried=10_000, observed=tried.total(), survived=tried.total() - len(missed))
    assert (tried.total(), missed) == (10_000, [])


def test_any_division_is_filled_from_all_others(tmp_path):
    """As `test_dtensor` says, all pairs of meshes."""
    for number, pair in enumerate(test_dtensor.PAIRS):
        test_dtensor.fills(*pair, tmp_path / str(number))


def test_ranks_that_are_killed_anywhere_leave_the_old_or_the_new(tally):
    """As `test_collective_killed` says, at many more instants: both outcomes, whether the ranks share files or not."""
    died = test_collective_killed.kills(range(120))
    tally("One of several ranks is killed in a save", tried=120, observed=len(died))
    for shares in (False, True):
        found = {len(steps) for _, _, steps, taken in died if bool(taken) == shares}
        assert found == {test_collective_killed.SAVED, test_collective_killed.SAVED + 1}


@pytest.mark.parametrize("case", test_pending_gradients.GROUPS, ids=str)
def test_every_group_of_gradients_may_be_cut(tmp_path, no_syncs, case):
    """As `test_pending_gradients` says, of all loops, at more steps."""
    test_pending_gradients.is_cut(tmp_path, case, (1, 2, 3, 5, 9, 12))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("how", test_defaultdicts.PLACES)
def test_each_factory_is_kept_in_each_place(tmp_path, no_syncs, how):
    """As `test_defaultdicts` says of some of them."""
    for name in test_defaultdicts.FACTORIES:
        test_defaultdicts.keeps_its_factory(tmp_path / name, how, name)


@pytest.mark.parametrize("name", test_rows.ROWS)
def test_all_rows_come_back_in_all_sequences(tmp_path, no_syncs, name):
    """As `test_rows` says, of each row in each sequence; and of runs, whatever the live sequence holds."""
    for kind in test_rows.KINDS:
        test_rows.come_back(tmp_path / kind, name, kind)
    for first in test_rows.LIVE if name in test_rows.KEPT else ():
        test_rows.goes_on(tmp_path / f"{first}", name, first)


@pytest.mark.parametrize("plant", test_stale_files.PLANTS, ids=name_of)
def test_each_stale_file_is_told_when_it_is_alone(tmp_path, no_syncs, plant):
    """As `test_stale_files` says of some of them, and of all at once."""
    test_stale_files.is_told(tmp_path, plant)


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.*", "ignore:.*epoch parameter.*")
@pytest.mark.parametrize("script", test_forgotten.RIGHT, ids=name_of)
def test_no_right_script_is_told_anything(tmp_path, no_syncs, script):
    """As `test_forgotten` says of some of them."""
    test_forgotten.is_told_nothing(tmp_path, script)


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_end_with_their_run_however_they_were_started(tmp_path, start):
    """As `test_torch_processes` says: when the whole group gets a signal, inside of a child process, and alone."""
    asked = {
        "training": lambda place: test_torch_processes.ends_no_worker(start, "training", place),
        "evaluating": lambda place: test_torch_processes.ends_no_worker(start, "evaluating", place),
        "alone": lambda place: test_torch_processes.ends_with_workers(start, place),
        "inside": lambda place: test_torch_processes.ends_inside_a_child(start, place),
    }
    for name, ends in asked.items():
        (tmp_path / name).mkdir()
        ends(tmp_path / name)


@pytest.mark.parametrize("name", test_foreign_hostile.SECONDS_EACH)
def test_hostile_files_that_take_seconds_cost_no_more(tmp_path, name):
    """As `test_foreign_hostile` says of all others."""
    test_foreign_hostile.costs_little(tmp_path, name)
