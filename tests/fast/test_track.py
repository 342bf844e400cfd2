"""Trackers, without one: which steps are sent to whom, whatever is cut, undone or full on the way."""

import errno
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from holdfast import Every, disk, journal
from holdfast.errors import UsageError
from holdfast.track import MLflow, WandB, client, cursor
from holdfast.track.ledger import Row, differs
from holdfast.track.options import file_name, parse_trackers
from holdfast.track.sender import Sender
from holdfast.track.to_wandb import _records
from toy import Cut, Toy, events, new_run

EPOCHS, BATCHES = 2, 8
LAST = EPOCHS * BATCHES
NAN = float("nan")


class Away(Exception):
    """The tracker is gone, or its answer."""


class Place:
    """What a tracker holds: of each run its rows, and its title. It outlives what sends to it.

    `faults`: what becomes of each batch, in order: "lost" before it, "unanswered" behind it, "half".
    """

    def __init__(self, faults=(), *, tells=True):
        self.runs, self.titles, self.notes, self.finished = {}, {}, {}, set()
        self.faults, self.tells = [*faults], tells


class Reached:
    """One connection to a place."""

    def __init__(self, place):
        self.place = place

    def begin(self, at):
        self.key = at.key
        self.place.titles[at.key], self.place.notes[at.key] = at.title, at.note
        rows = self.place.runs.setdefault(at.key, [])
        self.held = max((step for step, _ in rows), default=-1) if self.place.tells else -1
        return self.held if self.place.tells else None

    def send(self, rows):
        fault = self.place.faults.pop(0) if self.place.faults else ""
        if fault == "lost":
            raise Away
        kept = rows[: len(rows) // 2] if fault == "half" else rows
        self.place.runs[self.key] += [(row.step, dict(row.values)) for row in kept if row.step > self.held]
        if fault:
            raise Away

    def end(self, *, finished):
        if finished:
            self.place.finished.add(self.key)


class Sending:
    """Stands for the worker: a new sender after each error, as a new process has one."""

    def __init__(self, run, place):
        self.run, self.place, self.told = Path(run), place, []
        self.path = self.run / "trackers" / "x.json"
        self.sender = self.attempt = None

    def look(self, attempt):
        disk.make_dirs(self.path.parent)
        if self.sender is None or attempt != self.attempt:
            self.attempt = attempt
            self.sender = Sender(Reached(self.place), self.run, attempt, self.path, "toy", self.told.append)
        try:
            while self.sender.send_durable():
                pass
        except (Away, OSError):
            self.sender = None
            return False
        return True


def values(step, shift):
    return {"loss": step + shift, "odd": NAN if step % 3 == 0 else step / 2}


def train(path, sending, cut=None, shift=0.0, every=3, epochs=EPOCHS, **options):
    """Train until the cut, or to the end; `sending` looks after each step."""
    taken = 0
    try:
        with new_run(path, Toy(), every=Every(steps=every), background=False, take_over=True, **options) as run:
            for epoch in run.epochs(epochs):
                for _ in run.batches(range(BATCHES)):
                    run.log(**values(run.step + 1, shift))
                    taken += 1
                    if taken == cut:
                        raise Cut
                    run.metrics()  # what was logged is in the journal at once
                    sending.look(number(path))
                run.log(acc=epoch)
    except Cut:
        return
    for _ in range(50):
        if sending.look(number(path)):
            return
    raise AssertionError("the tracker was never reached")


def number(path):
    return journal.newest_attempt(Path(path))[0]


def expected(first=1, last=LAST, shift=0.0):
    """What stands at the tracker: a row for each step, the ends of epochs within."""
    ends = {BATCHES * (epoch + 1): {"acc": epoch} for epoch in range(EPOCHS)}
    return [(step, values(step, shift) | ends.get(step, {})) for step in range(first, last + 1)]


def same(one, other):
    return msgspec.json.encode(_plain(one)) == msgspec.json.encode(_plain(other))


def _plain(rows):
    return [(step, {k: repr(float(v)) for k, v in sorted(found.items())}) for step, found in rows]


def only(place):
    (rows,) = place.runs.values()
    return rows


def test_only_what_no_kill_undoes_is_sent(tmp_path):
    """Rows before the newest saved step; of the saved one itself more may come. At the end: all."""
    place, seen = Place(), []

    class Looks(Sending):
        def look(self, attempt):
            done = super().look(attempt)
            saved = [event["step"] for event in events(self.run, "saved")]
            seen.append((max(saved, default=0), len(only(self.place))))
            return done

    train(tmp_path / "run", Looks(tmp_path / "run", place))
    assert LAST + 1 == len(seen)
    assert [max(0, saved - 1) for saved, _ in seen[:-1]] == [sent for _, sent in seen[:-1]]
    assert {0, 3, 6, 9, 12, 15} <= {saved for saved, _ in seen[:-1]}
    assert same(expected(), only(place))
    assert 1 == len(place.runs)


@pytest.mark.parametrize("seed", range(8))
def test_however_often_it_was_cut_each_step_stands_there_once(seed, tmp_path):
    """The run is killed in any step. Batches, answers and notes of the cursor are lost, and batches are cut in two."""
    dice = random.Random(seed)
    place = Place(dice.choices(["", "lost", "unanswered", "half"], k=12))
    sending = Sending(tmp_path / "run", place)
    for _ in range(5):
        train(tmp_path / "run", sending, cut=dice.randint(1, 6), every=dice.randint(1, 4))
        if dice.random() < 0.5:
            sending.sender = None
    train(tmp_path / "run", sending)
    assert same(expected(), only(place))
    assert [] == sending.told


@pytest.mark.parametrize("seed", range(5))
def test_a_full_disk_for_the_cursor_repeats_nothing(seed, tmp_path, monkeypatch):
    """What was sent and not noted is asked for, and the cursor is written once there is space."""
    dice, write = random.Random(seed), cursor.write

    def full(path, at):
        if dice.random() < 0.6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, at)

    monkeypatch.setattr(cursor, "write", full)
    place = Place()
    sending = Sending(tmp_path / "run", place)
    for cut in (7, 5, 6):
        train(tmp_path / "run", sending, cut)
    train(tmp_path / "run", sending)
    assert same(expected(), only(place))
    assert LAST == cursor.read(sending.path).step


def test_where_it_cannot_be_asked_at_most_one_batch_stands_there_twice(tmp_path):
    """It took a batch, the answer was lost, and it cannot tell."""
    place = Place(["", "unanswered"], tells=False)
    train(tmp_path / "run", Sending(tmp_path / "run", place))
    twice = {step for step, count in Counter(step for step, _ in only(place)).items() if count > 1}
    assert {3, 4, 5} == twice
    assert [step for step, _ in expected()] == sorted({step for step, _ in only(place)})


def test_steps_that_come_again_with_equal_values_are_not_sent_again(tmp_path):
    """After `go_back` of a run that was finished, and of one that is killed again on the way."""
    place = Place()
    sending = Sending(tmp_path / "run", place)
    train(tmp_path / "run", sending)
    train(tmp_path / "run", sending, cut=5, go_back=6)
    train(tmp_path / "run", sending, cut=3)
    train(tmp_path / "run", sending)
    assert same(expected(), only(place))
    assert [] == sending.told


@pytest.mark.parametrize("cuts", [(), (2,), (5, 4)])
def test_steps_that_come_again_with_other_values_go_to_another_run(cuts, tmp_path):
    """It is named after the first of them and notes whose they continue; this is told once, however it is cut."""
    place = Place()
    sending = Sending(tmp_path / "run", place)
    train(tmp_path / "run", sending)
    options = {"go_back": 6}
    for cut in cuts:
        train(tmp_path / "run", sending, cut=cut, shift=0.5, **options)
        options = {}
    train(tmp_path / "run", sending, shift=0.5, **options)
    first, other = place.runs
    assert same(expected(), place.runs[first])
    assert same(expected(7, shift=0.5), place.runs[other])
    assert ["toy", "toy-from-step-7"] == [*place.titles.values()]
    assert f"goes on from toy ({first}) at step 7, with other values" == place.notes[other]
    assert [f"step 7 came again with other values than toy ({first}) has; toy-from-step-7 begins there"] == sending.told
    assert first in place.finished


def test_a_run_that_is_extended_goes_on_in_its_run(tmp_path):
    """Values that the first end had logged behind the loop stay; the further steps follow."""
    place = Place()
    sending = Sending(tmp_path / "run", place)
    train(tmp_path / "run", sending, epochs=1)
    train(tmp_path / "run", sending)
    assert same(expected(), only(place))


def test_what_the_tracker_has_lost_is_sent_again(tmp_path):
    """It was set back to an older state, or its run was removed; the tracker is believed, not the cursor."""
    place = Place()
    sending = Sending(tmp_path / "run", place)
    train(tmp_path / "run", sending, epochs=1)
    del only(place)[4:]
    train(tmp_path / "run", sending)
    assert same(expected(), only(place))


def test_a_sender_whose_attempt_was_superseded_sends_nothing(tmp_path):
    """The later attempt has one of its own."""
    place = Place()
    train(tmp_path / "run", Sending(tmp_path / "run", place), cut=9)
    train(tmp_path / "run", Sending(tmp_path / "run", Place()), cut=2)
    late = Sender(Reached(Place()), tmp_path / "run", 1, tmp_path / "late.json", "toy", print)
    assert not late.send_durable()
    assert late.superseded


def test_a_cursor_that_is_none_is_no_cursor(tmp_path):
    """Cut, another program's, of a later version: the tracker gets a new run."""
    path = tmp_path / "x.json"
    good = cursor.Cursor("k", "toy", step=3)
    cursor.write(path, good)
    assert good == cursor.read(path)
    for text in (b"", b"{", path.read_bytes().replace(b'"version":1', b'"version":2'), b'{"key":"k"}'):
        path.write_bytes(text)
        assert cursor.read(path) is None
    assert cursor.read(tmp_path / "none.json") is None


def test_values_are_compared_as_numbers():
    """NaN equals NaN; a name that is missing is no difference, one that is new is."""
    sent = Row(1, 0.0, {"a": 1.0, "b": NAN, "c": math.inf})
    for found, other in [
        ({"a": 1, "b": NAN}, False),
        ({"c": math.inf}, False),
        ({"a": 2.0}, True),
        ({"b": 1.0}, True),
        ({"a": 1.0, "d": 0.0}, True),
    ]:
        assert other == differs(Row(1, 9.0, found), sent)
    assert differs(Row(1, 0.0, {"a": 1.0}), None)


def test_one_process_at_a_time_sends_to_a_tracker(tmp_path):
    """The lock is free again once its holder was killed."""
    lock = tmp_path / "x.lock"
    code = "import sys, pathlib, holdfast.disk as d; print(d.lock(pathlib.Path(sys.argv[1])), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline().strip().isdigit()
        assert disk.lock(lock) is None
        holder.kill()
    descriptor = disk.lock(lock)
    assert descriptor is not None
    os.close(descriptor)


def test_a_tracker_whose_package_hangs_is_told_while_the_run_trains(tmp_path, monkeypatch, capsys):
    """After a minute without a word of its process, once; the end waits for it, up to its limit."""
    package = tmp_path / "wandb"
    package.mkdir()
    (package / "__init__.py").write_text("import time; time.sleep(1000)")
    monkeypatch.setattr("holdfast.track.options.find_spec", lambda name: name)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(client, "QUIET_S", 0.6)
    monkeypatch.setattr(client, "DRAIN_S", 0.3)
    with new_run(tmp_path / "run", Toy(), track=WandB("digits"), every=Every(steps=1)) as run:
        for step in run.steps(30):
            time.sleep(0.05)
            if step == 29:
                told = capsys.readouterr().err
    assert 1 == told.count("W&B digits is not kept up: nothing was heard from it for 1 s")
    assert "is kept up again" not in told
    assert "does not have all metrics yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("digits", "track='digits': give trackers"),
        ([WandB(3)], "track: WandB: Expected `str`, got `int`"),
        ([WandB("a", mode="of")], "track: WandB: Invalid enum value 'of'"),
        ([WandB("")], "track: WandB: Expected `str` of length >= 1"),
        ([MLflow("a"), MLflow("a")], "a tracker is given twice"),
        ([7], "track=7: give trackers"),
    ],
)
def test_what_is_no_tracker_is_refused(given, line, monkeypatch):
    """With the argument in the line."""
    monkeypatch.setattr("holdfast.track.options.find_spec", lambda name: name)
    with pytest.raises(UsageError) as refused:
        parse_trackers(given)
    assert line in str(refused.value)


def test_a_package_that_is_not_there_is_wrong_use(tmp_path):
    """Before anything is trained; the training's process imports none of them."""
    if "wandb" in sys.modules:
        pytest.skip("another test has imported it")
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr("holdfast.track.options.find_spec", lambda name: None)
        with pytest.raises(UsageError, match=r"pip install \"holdfast\[wandb\]\""):
            new_run(tmp_path / "run", Toy(), track=WandB("digits"))
    assert not (tmp_path / "run").exists()


def test_no_secret_of_an_address_is_shown_or_named():
    """The password may change without a new run at the tracker."""
    plain, secret, other = (
        MLflow("digits", tracking_uri=f"https://{user}tracker.example/api{query}")
        for user, query in [("", ""), ("me:hunter22@", "?token=abc123"), ("me:hunter23@", "")]
    )
    assert file_name(secret) == file_name(other)
    for shown in (str(plain), str(secret), file_name(secret)):
        assert "hunter" not in shown
        assert "abc123" not in shown
    assert "tracker.example/api digits" in str(plain)
    assert file_name(WandB("digits")) != file_name(WandB("digits", name="b"))


def test_records_of_wandb_are_read_as_far_as_they_are_whole(tmp_path):
    """In pieces over blocks, from any record's end, and up to any cut."""
    dice, path = random.Random(1), tmp_path / "x.wandb"
    records = [dice.randbytes(size) for size in (5, 40_000, 0, 32_768, 1, 100_000, 9, 32_700, 70, 3)]
    data = bytearray(b"\0" * 7)
    for record in records:
        rest, first = record, True
        while first or rest:
            room = 32768 - len(data) % 32768
            if room < 7:
                data += b"\0" * room
                continue
            piece, rest = rest[: room - 7], rest[room - 7 :]
            kind = (1 if not rest else 2) if first else (3 if rest else 4)
            data += b"\0" * 4 + len(piece).to_bytes(2, "little") + bytes([kind]) + piece
            first = False
    path.write_bytes(data)
    found = [*_records(path, 7)]
    assert records == [each for _, each in found]
    for number, (end, _) in enumerate(found):
        assert records[number + 1 :] == [each for _, each in _records(path, end)]
    for cut in [dice.randrange(7, len(data)) for _ in range(50)]:
        path.write_bytes(data[:cut])
        assert records[: sum(end <= cut for end, _ in found)] == [each for _, each in _records(path, 7)]
