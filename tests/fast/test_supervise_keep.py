"""Checkpoints of a program that is not ours: committed when they are whole, handed back when they are valid."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from holdfast import journal
from holdfast.apps.program import Checkpoint
from holdfast.errors import NoSpace, StoreError
from holdfast.store.store import Store
from holdfast.supervise import keep
from holdfast.supervise.keep import Kept
from supervised import PATIENCE_S, until

WRITER = Path(__file__).parents[1] / "writer.py"
WHOLE = 2001

DRIVER = """
import sys
from pathlib import Path
from holdfast.apps.program import Checkpoint
from holdfast.errors import HoldfastError
from holdfast.supervise import keep, supervise as room
from holdfast.supervise.supervise import Options, supervise

keep.LOOK_S = room.LOOK_S = 0.2

class Writer:
    # the adapter of writer.py

    def begin(self, command, checkpoint, time_left_s):
        self.began = Path("state.ck").stat().st_mtime_ns if Path("state.ck").exists() else None
        return [*command, *(["--from", str(checkpoint / "state.ck")] if checkpoint else [])]

    def checkpoint(self):
        file = Path("state.ck").absolute()
        if not file.exists() or file.stat().st_mtime_ns == self.began:
            return None
        words = file.read_text().split()
        return Checkpoint([file], int(words[0]) if words and words[0].isdecimal() else None)

    def stop(self, number, pid):
        return 15

    def verdict(self, ended):
        if "is not whole" in ended.tail:
            return "damaged"
        if "stopped early" in ended.tail:
            return "stopped"
        return "done" if ended.code == 0 else "failed"

try:
    outcome = supervise(sys.argv[2:], lambda place: Writer(), Options(Path(sys.argv[1]), keeps=True, retries=RETRIES))
except HoldfastError as error:
    sys.stderr.write(f"{error}\\n")
    sys.exit(error.exit_code)
sys.exit(outcome.exit_code)
"""


class Driven:
    """A supervisor of writer.py in `place`, with its store in `place`/run."""

    def __init__(self, place, steps, *options, retries=0):
        self.place = Path(place)
        (self.place / "driver.py").write_text(textwrap.dedent(DRIVER).replace("RETRIES", str(retries)))
        words = [sys.executable, "driver.py", "run", sys.executable, WRITER, steps, *options]
        with (self.place / "out").open("ab") as out, (self.place / "err").open("ab") as err:
            self.process = subprocess.Popen([*map(str, words)], cwd=place, stdout=out, stderr=err)

    def end(self):
        return self.process.wait(PATIENCE_S)

    @property
    def printed(self):
        return (self.place / "out").read_text()

    @property
    def said(self):
        return (self.place / "err").read_text()

    @property
    def child(self):
        lines = [json.loads(line) for line in (self.place / "run" / "supervisor.jsonl").read_text().split("\n") if line]
        return [line["pid"] for line in lines if line["event"] == "start"][-1]


def driven(place, steps, *options, **more):
    it = Driven(place, steps, *options, **more)
    it.code = it.end()
    return it


def kept(place):
    return [checkpoint.step for checkpoint in Store(place / "run").checkpoints()]


def whole(checkpoint):
    """Whether it is one whole checkpoint of the program's, and not halves of two."""
    text = (checkpoint.path / "state.ck").read_text()
    return len(text) == WHOLE and set(text[WHOLE // 2 : -1]) == {str(int(text.split()[0]) % 10)}


def uninterrupted(steps):
    value = 1
    for step in range(1, steps + 1):
        value = value * 31 % 1_000_003 + step
    return f"value {value}"


# The whole way, on real processes ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_program_that_is_stopped_goes_on_where_it_stopped(tmp_path):
    """Its own exit code was 1; ours says 75, and the last state is in the store."""
    it = Driven(tmp_path, 100)
    until(lambda: kept(tmp_path) if (tmp_path / "run" / "checkpoints").is_dir() else [], "a checkpoint")
    it.process.send_signal(signal.SIGUSR1)
    assert 75 == it.end()
    (newest,) = kept(tmp_path)[-1:]
    again = driven(tmp_path, 100)
    assert 0 == again.code
    assert f"from {newest}\n" in again.printed
    assert again.printed.splitlines()[-1] == uninterrupted(100)


@pytest.mark.slow
def test_a_crash_costs_what_came_after_the_last_checkpoint(tmp_path):
    """SIGKILL; a retry goes on from the store, and not from the file that may be half written."""
    it = Driven(tmp_path, 100, "--step", "0.05", retries=1)
    until(lambda: kept(tmp_path) if (tmp_path / "run" / "checkpoints").is_dir() else [], "a checkpoint")
    os.kill(it.child, signal.SIGKILL)
    (tmp_path / "state.ck").write_text("half of one")
    assert 0 == it.end()
    assert it.printed.splitlines()[-1] == uninterrupted(100)


@pytest.mark.slow
def test_every_checkpoint_that_is_kept_is_whole(tmp_path):
    """The program writes in place, and longer than it computes; what was caught in between is not kept."""
    it = Driven(tmp_path, 40, "--pause", "0.5", "--step", "0.1")
    seen = set()
    over = False
    while not over:
        over = it.process.poll() is not None  # then once more: the last one comes at the very end
        for checkpoint in Store(tmp_path / "run").checkpoints() if (tmp_path / "run" / "checkpoints").is_dir() else []:
            seen.add(checkpoint.step)
            assert whole(checkpoint)
        time.sleep(0.05)
    assert 0 == it.end()
    assert len(seen) > 1
    assert kept(tmp_path) == sorted(seen)[-3:]


@pytest.mark.slow
def test_a_checkpoint_that_the_program_refuses_makes_way_for_an_older_one(tmp_path):
    """It is whole as we know it, and the program says that it is not: quarantined, told, and the next older one used."""
    driven(tmp_path, 60, "--step", "0.06")
    steps = kept(tmp_path)
    assert len(steps) > 1
    store = Store(tmp_path / "run")
    with store.directory(step=1000) as path:
        (path / "state.ck").write_text("59 1 half")
    store.close()
    it = driven(tmp_path, 80)
    assert 0 == it.code
    assert "state.ck is not whole" in it.printed
    assert f"from {steps[-1]}\n" in it.printed
    assert it.printed.splitlines()[-1] == uninterrupted(80)
    assert "step-000001000 could not be read by the program; it is now" in it.said
    assert ["step-000001000-refused"] == [path.name for path in (tmp_path / "run" / "quarantine").iterdir()]


@pytest.mark.slow
def test_when_it_refuses_all_it_does_not_begin_from_scratch(tmp_path):
    """That would lose what is there without a word. Exit 1, and how to begin anew."""
    store = Store(tmp_path / "run")
    for step in (1, 2):
        with store.directory(step=step) as path:
            (path / "state.ck").write_text("1 1 half")
    store.close()
    it = driven(tmp_path, 20)
    assert 1 == it.code
    assert "from" not in it.printed
    assert "there were checkpoints, and none that would do is left" in it.said
    assert "step-000000001-refused, step-000000002-refused. To start from scratch, give another --run" in it.said


@pytest.mark.slow
def test_a_flipped_bit_in_the_store_costs_one_checkpoint(tmp_path):
    """The program never sees it."""
    driven(tmp_path, 60, "--step", "0.06")
    steps = kept(tmp_path)
    file = Store(tmp_path / "run").latest().path / "state.ck"
    data = bytearray(file.read_bytes())
    data[1500] ^= 1
    file.write_bytes(data)
    it = driven(tmp_path, 80)
    assert (0, uninterrupted(80)) == (it.code, it.printed.splitlines()[-1])
    assert f"from {steps[-2]}\n" in it.printed
    assert "is not whole" not in it.printed


@pytest.mark.slow
def test_a_crash_at_the_same_step_ends_with_the_last_lines(tmp_path):
    """Each attempt goes on from the same checkpoint and gets no further."""
    (tmp_path / "poison").write_text("52")
    it = driven(tmp_path, 100, "--step", "0.03", retries=1)
    assert 8 == it.code
    assert f"{WRITER}: exit 9: no retry left of 1; it ended with\nfrom " in it.said


@pytest.mark.slow
def test_two_supervisors_of_one_store_are_refused(tmp_path):
    it = Driven(tmp_path, 100, "--step", "0.1")
    until(lambda: "from" in it.printed)
    second = driven(tmp_path, 5)
    assert 2 == second.code
    assert "another `holdfast run` may still be running there" in second.said
    it.process.send_signal(signal.SIGTERM)
    assert 75 == it.end()


# Settling, in one process -----------------------------------------------------------------------------------------


class Files:
    """A program that says what the test wants."""

    def __init__(self):
        self.found = None

    def checkpoint(self):
        return self.found


@pytest.fixture
def program(monkeypatch):
    monkeypatch.setattr(keep, "LOOK_S", 0.05)
    return Files()


@pytest.fixture
def there(tmp_path, program):
    """A file `a.ck` that the program calls its checkpoint of step 7."""
    path = tmp_path / "a.ck"
    path.write_text("state")
    program.found = Checkpoint([path], 7)
    return path


def looked(kept, pids=()):
    """Two looks, far enough apart."""
    first = kept.look(lambda: pids)
    time.sleep(0.06)
    return first, kept.look(lambda: pids)


def test_it_is_kept_when_it_has_not_changed_between_two_looks(tmp_path, program, there):
    """Once: the same one is not kept again."""
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    assert (None, 7) == looked(shelf)
    assert (None, None) == looked(shelf)
    assert "state" == (shelf.store.latest().path / "a.ck").read_text()
    there.write_text("later")
    program.found = Checkpoint([there], 9)
    assert (None, 9) == looked(shelf)


def test_what_changes_at_every_look_is_kept_when_nobody_is_writing_it(tmp_path, program, there):
    """A program that writes more often than we look would otherwise have nothing in the store."""
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    found = []
    for step in range(8):
        there.write_text(f"state {step}")
        program.found = Checkpoint([there], step)
        found.append(shelf.look(list))
    assert [None, None, 2, None, None, 5, None, None] == found


def test_what_was_kept_is_in_the_journal_at_once(tmp_path, program, there):
    """A supervisor that is killed later has still told when it last kept something."""
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    shelf.last(orderly=True)
    assert "saved" in [event["event"] for event in journal.logs(tmp_path / "run")[-1].events]


def test_what_says_when_it_has_settled_is_looked_at_again_in_time(tmp_path, program, there, monkeypatch):
    """However seldom we look otherwise."""
    monkeypatch.setattr(keep, "LOOK_S", 60.0)
    program.found = Checkpoint([there], 7, settle_s=0.2)
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    assert (None, 0.1) == (shelf.look(list), shelf.look_s)
    time.sleep(0.1)
    assert (None, 0.1) == (shelf.look(list), shelf.look_s)
    time.sleep(0.1)
    assert (7, 60.0) == (shelf.look(list), shelf.look_s)


def test_what_never_settles_is_told_once(tmp_path, program, there, monkeypatch, capsys):
    """And never kept: that the file changes at every look is no sign of its being whole."""
    monkeypatch.setattr(keep, "UNSETTLED_S", 0.2)
    program.found = Checkpoint([there], settle_s=0.05)
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    for step in range(20):
        there.write_text(f"state {step}")
        assert shelf.look(list) is None
        time.sleep(0.02)
    said = capsys.readouterr().err
    assert "a.ck: never unchanged for 0.05 s, so nothing of it could be kept since" in said
    assert 1 == said.count("give a shorter `settle_s`, or let the program write to another name")


def test_what_may_be_of_two_checkpoints_is_not_taken_over(tmp_path, program, there, capsys):
    """Killed between two files, one is new and the other old."""
    (tmp_path / "b.ck").touch()
    shelf = Kept(tmp_path / "run", program)
    assert shelf.take_over(Checkpoint([there, tmp_path / "b.ck"])) is None
    assert "a.ck, b.ck: written when the last start was killed, perhaps not all of them" in capsys.readouterr().err
    assert 0 == shelf.take_over(Checkpoint([there]))


def test_what_somebody_holds_open_for_writing_is_not_whole_yet(tmp_path, program, there, monkeypatch):
    """Until it has not changed for long: some programs never close their files."""
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    with there.open("a"):
        assert (None, None) == looked(shelf, [os.getpid()])
        with there.open("r"):
            assert (None, None) == looked(shelf, [os.getpid()])
        monkeypatch.setattr(keep, "HELD_S", 0.2)
        time.sleep(0.2)
        assert 7 == shelf.look(lambda: [os.getpid()])
    assert not list((tmp_path / "run" / "attempts" / "1").glob("step-*"))


def test_what_changes_while_it_is_copied_is_left_for_later(tmp_path, program, there, monkeypatch):
    """Nothing of it stays in the store."""
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    honest = keep.take

    def copied(found, into):
        taken = honest(found, into)
        there.write_text("moved on")
        return taken

    monkeypatch.setattr(keep, "take", copied)
    assert (None, None) == looked(shelf)
    monkeypatch.setattr(keep, "take", honest)
    assert (None, 7) == looked(shelf)
    assert "moved on" == (shelf.store.latest().path / "a.ck").read_text()


def test_a_crash_leaves_no_half_checkpoint(tmp_path, program, there):
    """What was there for some time before is kept; what has just been touched is not, unless the program ended in order."""
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    assert None is shelf.last(orderly=False)
    shelf.look(list)
    time.sleep(0.06)
    assert 7 == shelf.last(orderly=False)
    there.write_text("at the end")
    program.found = Checkpoint([there], 8)
    assert 8 == shelf.last(orderly=True)


def test_what_shows_by_itself_that_it_is_whole_is_kept_at_once(tmp_path, program, there):
    """Also after a crash: some formats end with a mark."""
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    program.found = Checkpoint([there], 1, whole=True)
    assert 1 == shelf.look(list)
    there.write_text("later")
    program.found = Checkpoint([there], 2, whole=True)
    assert 2 == shelf.last(orderly=False)


def test_without_steps_of_its_own_they_are_counted(tmp_path, program, there):
    """And a count that falls back goes on from what is there: a checkpoint is never overwritten."""
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    found = []
    for text, step in (("a", None), ("b", None), ("c", 50), ("d", 20), ("e", None)):
        there.write_text(text)
        program.found = Checkpoint([there], step)
        found.append(shelf.last(orderly=True))
    assert [0, 1, 50, 51, 52] == found
    assert [50, 51, 52] == kept(tmp_path)


def test_what_lies_there_already_is_not_kept_twice(tmp_path, program, there):
    """A new start finds the very bytes of the newest checkpoint."""
    for _ in range(2):
        shelf = Kept(tmp_path / "run", program)
        shelf.begin()
        assert 7 == shelf.last(orderly=True)
        shelf.close()
    assert [7] == kept(tmp_path)
    assert 0 == shelf.committed


def test_several_files_keep_their_places(tmp_path, program):
    root = tmp_path / "work"
    (root / "deep").mkdir(parents=True)
    files = [root / "a.ck", root / "deep" / "b.ck"]
    for file in files:
        file.write_text(file.name)
    program.found = Checkpoint(files, 1, root)
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    assert 1 == shelf.last(orderly=True) == shelf.last(orderly=True) or shelf.committed == 1
    assert "b.ck" == (shelf.store.latest().path / "deep" / "b.ck").read_text()


def test_a_full_disk_is_told_once_and_the_program_goes_on(tmp_path, program, there, monkeypatch, capsys):
    """At the end it is an error: the state would be lost."""

    def full(found, into):
        raise OSError(28, "No space left on device")

    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    monkeypatch.setattr(keep, "take", full)
    for _ in range(3):
        assert (None, None) == looked(shelf)
    assert 1 == capsys.readouterr().err.count(
        "no space left to keep a checkpoint; free some, or keep fewer checkpoints; the program goes on"
    )
    with pytest.raises(NoSpace):
        shelf.last(orderly=True)
    assert not list((tmp_path / "run" / "attempts" / "1").glob("step-*"))


def test_a_run_that_was_taken_over_keeps_nothing_more(tmp_path, program, there):
    """Superseded: exit 9, and the successor's store is as it was."""
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    other = Store(tmp_path / "run", take_over=True)
    other.claim()
    with pytest.raises(StoreError, match="superseded"):
        shelf.last(orderly=True)
    assert [] == kept(tmp_path)


def test_nothing_is_no_checkpoint(tmp_path, program, there):
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    there.unlink()
    assert (None, None) == looked(shelf)
    program.found = None
    assert None is shelf.last(orderly=True)
    assert None is shelf.newest_valid()


def test_the_newest_valid_one_is_handed_back(tmp_path, program, there, capsys):
    """A manifest that is not whole counts as damage, too; nothing is deleted."""
    shelf = Kept(tmp_path / "run", program)
    shelf.begin()
    for step in (7, 8, 9):
        there.write_text(f"state {step}")
        program.found = Checkpoint([there], step)
        shelf.last(orderly=True)
    paths = [checkpoint.path for checkpoint in shelf.store.checkpoints()]
    (paths[2] / "a.ck").write_text("state 8")
    (paths[1] / "manifest.json").write_text("{}")
    assert 7 == shelf.newest_valid().step
    assert 2 == len(list((tmp_path / "run" / "quarantine").iterdir()))
    assert 2 == capsys.readouterr().err.count("it is now")
    shutil.rmtree(paths[0])
    with pytest.raises(StoreError, match="none that would do is left"):
        shelf.newest_valid()
