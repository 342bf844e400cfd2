"""AtomicDirectory among ranks that are real processes: one directory or one each, one error on all, and no endless
wait.
"""

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from faults import door
from holdfast.compat import directory as room
from holdfast.compat.cycling_utils import AtomicDirectory
from rank_processes import everywhere

LINK = "AtomicDirectory.latest_checkpoint"


def save(saver, rank, number, **options):
    """Each rank one file; the path, as this rank has it."""
    directory = saver.prepare_checkpoint_directory(**options)
    time.sleep(0.01 * rank)  # the others may be done before
    (Path(directory) / f"{rank}.pt").write_text(str(number))
    saver.symlink_latest(directory)
    return directory


def latest(output_directory, saver, world):
    """As the documentation has it; the number that all ranks' files say, or None."""
    link = os.path.join(output_directory, saver.symlink_name)
    if not os.path.exists(link):
        return None
    (number,) = {(Path(os.readlink(link)) / f"{rank}.pt").read_text() for rank in range(world)}
    return int(number)


def values(world, work):
    """What `work` returned on each rank."""
    outcomes = everywhere(world, work)
    assert [""] * world == [each.error for each in outcomes]
    return [each.value for each in outcomes]


def there(path):
    return sorted(os.listdir(path))


# The strategies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "world", "forced"), [("sync_any", 2, [False, True, True]), ("sync_all", 3, [False, False, True])]
)
def test_ranks_that_save_together_share_one_directory(tmp_path, strategy, world, forced):
    """The same path everywhere; on every rank, what returned is there, with the files of all; a new start finds it.

    It is forced when any, or when all ranks say so: none, all but the first, all.
    """

    def work(rank):
        saver = AtomicDirectory(tmp_path, is_master=rank == 0, strategy=strategy, keep_last=2)
        paths = [save(saver, rank, number, force_save=rank >= first) for number, first in enumerate((9, 1, 0, 9, 9))]
        again = AtomicDirectory(tmp_path, is_master=rank == 0, strategy=strategy, keep_last=2)
        return saver.is_master, paths, latest(tmp_path, again, world)

    names = [f"AtomicDirectory_checkpoint_{n}{'_force' * force}" for n, force in enumerate([*forced, False, False])]
    expected = [str(tmp_path / name) for name in names]
    assert [(rank == 0, expected, 4) for rank in range(world)] == values(world, work)
    assert [LINK, *(name for name in names if "force" in name or name > names[2])] == there(tmp_path)


def test_async_ranks_save_each_on_its_own(tmp_path):
    """Under names of their own, as often as each likes, forced when that rank says so; only the strategy is agreed
    on.
    """

    def work(rank):
        saver = AtomicDirectory(tmp_path, is_master=True, strategy="async", keep_last=1)
        for number in range(1 + rank):
            save(saver, rank, number, force_save=rank == 1 and number == 0)
        return saver.name, saver.is_master

    assert [("AtomicDirectory_rank_0", True), ("AtomicDirectory_rank_1", True)] == values(2, work)
    assert [
        *("AtomicDirectory_rank_0.latest_checkpoint", "AtomicDirectory_rank_0_checkpoint_0"),
        "AtomicDirectory_rank_1.latest_checkpoint",
        *("AtomicDirectory_rank_1_checkpoint_0_force", "AtomicDirectory_rank_1_checkpoint_1"),
    ] == there(tmp_path)


def test_mono_belongs_to_no_group(tmp_path):
    """One rank of two has a saver, and waits for nobody."""

    def work(rank):
        if rank == 0:
            return os.path.basename(
                save(AtomicDirectory(tmp_path, name="alone", strategy="mono"), 0, 1, force_save=True)
            )
        return None

    assert ["alone_checkpoint_0_force", None] == values(2, work)


@pytest.mark.parametrize(("claims", "master"), [([], 0), ([1], 1)])
def test_the_master_is_who_says_so_else_rank_0(tmp_path, claims, master):
    """The older documentation names none. Only the master changes what is there."""

    def work(rank):
        changes = []

        def change(call, perform):
            changes.append(call.name)
            return perform()

        with door(change):
            saver = AtomicDirectory(tmp_path, is_master=rank in claims)
            for number in range(2):
                saver.symlink_latest(saver.prepare_checkpoint_directory(number))
        return saver.is_master, {"mkdir", "rename", "symlink"} <= {*changes}, {*changes} <= {"fsync"}

    assert [(rank == master, rank == master, rank != master) for rank in range(2)] == values(2, work)


def test_every_rank_makes_its_own_files_durable(tmp_path):
    """On network file systems one machine cannot sync what another has written."""

    def work(rank):
        saver = AtomicDirectory(tmp_path)
        directory = Path(saver.prepare_checkpoint_directory())
        (directory / f"{rank}.pt").write_text("mine")
        synced = []

        def change(call, perform):
            synced.append(os.readlink(f"/proc/self/fd/{call.descriptor}") if call.name == "fsync" else call.name)
            return perform()

        with door(change):
            saver.symlink_latest(directory)
        return {str(directory / f"{rank}.pt"), str(directory)} <= {*synced}

    assert [True, True] == values(2, work)


# Wrong use -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            lambda rank: {"strategy": ["sync_any", "async"][rank]},
            "strategy is 'sync_any' on rank 0 and 'async' on rank 1",
        ),
        (lambda rank: {"keep_last": rank}, "keep_last is 0 on rank 0 and 1 on rank 1"),
        (lambda rank: {"name": "ab"[rank]}, "name is 'a' on rank 0 and 'b' on rank 1"),
        (lambda _: {"is_master": True}, "ranks 0, 1 say is_master=True"),
    ],
)
def test_ranks_that_disagree_all_learn_it(tmp_path, options, message):
    """Before anything is made; who says what is in the message."""
    for outcome in everywhere(2, lambda rank: AtomicDirectory(tmp_path / "out", **options(rank)).name):
        assert outcome.error.startswith("UsageError")
        assert message in outcome.error
    assert [] == there(tmp_path)


def test_a_rank_that_sees_another_disk_is_named(tmp_path, monkeypatch):
    """Two directories where one should be: one error on every rank; also where the latest is another at the start."""
    monkeypatch.setattr(room, "SEEN_S", 0.3)

    def work(rank):
        AtomicDirectory(tmp_path / f"disk-{rank}").prepare_checkpoint_directory()

    for unseen in (
        "the empty directory AtomicDirectory_checkpoint_0",
        f"that {LINK} names AtomicDirectory_checkpoint_0",
    ):
        first, second = everywhere(2, work)
        assert f"StoreError: rank 1: cannot see {unseen}" in first.error
        assert "need one shared directory" in second.error
        save(AtomicDirectory(tmp_path / "disk-0"), 0, 1)


def test_ranks_that_finish_two_directories_learn_it(tmp_path):
    """One directory becomes the latest; here none does."""

    def work(rank):
        saver = AtomicDirectory(tmp_path)
        path = saver.prepare_checkpoint_directory()
        os.makedirs(other := f"{path[:-1]}7", exist_ok=True)
        saver.symlink_latest(path if rank == 0 else other)

    message = "it is 'AtomicDirectory_checkpoint_0' on rank 0 and 'AtomicDirectory_checkpoint_7' on rank 1"
    for outcome in everywhere(2, work):
        assert message in outcome.error
    assert not os.path.lexists(tmp_path / LINK)


@pytest.mark.parametrize("kind", ["gone", "foreign"])
def test_what_one_rank_cannot_finish_is_finished_by_none(tmp_path, kind):
    """The error is raised on all, and the latest stays what it was."""

    def work(rank):
        saver = AtomicDirectory(tmp_path)
        save(saver, rank, 1)
        path = saver.prepare_checkpoint_directory()
        wrong = {"gone": f"{path}0", "foreign": str(tmp_path)}[kind]
        saver.symlink_latest(wrong if rank == 1 else path)

    for outcome in everywhere(2, work):
        assert {"gone": "NotFound", "foreign": "UsageError"}[kind] == outcome.error.split(":")[0]
    assert os.readlink(tmp_path / LINK) == "AtomicDirectory_checkpoint_0"


def test_what_fails_on_the_master_fails_on_all_and_the_next_save_succeeds(tmp_path):
    """A full disk, at each step in turn."""

    def work(rank):
        said = []
        saver = AtomicDirectory(tmp_path, keep_last=1)
        save(saver, rank, 0)

        def full(call, perform):
            if call.name in {"mkdir", "symlink"}:
                raise OSError(28, "No space left on device")
            return perform()

        for number, steps in ((1, "prepare"), (2, "finish")):
            try:
                if steps == "prepare":
                    with door(full):
                        saver.prepare_checkpoint_directory()
                path = saver.prepare_checkpoint_directory()
                with door(full):
                    saver.symlink_latest(path)
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
            save(saver, rank, number)
        return said, os.readlink(tmp_path / LINK)

    first, second = values(2, work)
    assert ["OSError: [Errno 28] No space left on device"] * 2 == first[0]
    assert all("rank 0: OSError: [Errno 28]" in said for said in second[0])
    assert {first[1], second[1]} == {"AtomicDirectory_checkpoint_2"}


# A rank that is gone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["AtomicDirectory", "prepare", "symlink"])
def test_a_rank_that_does_not_come_is_named_in_time(tmp_path, call):
    """The deadline is the ranks' own: nobody waits for ever in a barrier."""

    def work(rank):
        steps = iter(("AtomicDirectory", "prepare", "symlink"))

        def come():
            if next(steps) == call and rank == 1:
                time.sleep(1.2)
                raise InterruptedError

        come()
        saver = AtomicDirectory(tmp_path)
        come()
        path = saver.prepare_checkpoint_directory()
        come()
        saver.symlink_latest(path)

    began = time.monotonic()
    first, second = everywhere(2, work, timeout_s=0.5)
    assert first.error.startswith("RanksError: rank 1 did not come to")
    assert {"AtomicDirectory": "its Run"}.get(call, call) in first.error  # the first one is where they meet
    assert second.error.startswith("InterruptedError")
    assert time.monotonic() - began < 60
    assert not os.path.lexists(tmp_path / LINK)


def train(output_directory, fatal, rank):
    """Two ranks that save together until `fatal[0]` kills itself at its `fatal[1]`th change or so of the file
    system.
    """
    changes = [0]

    def change(call, perform):
        changes[0] += 1
        if (rank, changes[0]) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return perform()

    saver = AtomicDirectory(output_directory, is_master=rank == 0, keep_last=1)
    number = latest(output_directory, saver, 2) or 0
    with door(change):
        for following in range(number + 1, number + 4):
            save(saver, rank, following)
    return number


def test_sigkill_of_either_rank_at_seeded_instants_leaves_the_latest_whole(tmp_path):
    """Twelve kills: the other rank ends in time with an error, and the next start goes on from a whole checkpoint."""
    generator, before, kills = random.Random(7), 0, 0
    for _ in range(12):
        fatal = (generator.randrange(2), generator.randrange(1, 30))
        outcomes = everywhere(2, partial(train, tmp_path, fatal), timeout_s=0.7)
        killed, other = outcomes[fatal[0]], outcomes[1 - fatal[0]]
        if killed.exit_code == -signal.SIGKILL:
            kills += 1
            assert other.error.startswith("RanksError") or other.value is not None
        if os.path.lexists(tmp_path / LINK):
            target = Path(os.path.realpath(tmp_path / LINK))
            (number,) = {(target / f"{rank}.pt").read_text() for rank in range(2)}
            assert before <= int(number) <= before + 3
            before = int(number)
    assert [before, before] == values(2, partial(train, tmp_path, None))
    assert before > 3
    assert kills >= 6
