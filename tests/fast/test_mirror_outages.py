"""Outages of a place: each begins and ends in the journal, and the terminal tells both without being flooded."""

import os
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from holdfast import Every, Last, Run
from holdfast.mirror import mirror_place, mirrors
from holdfast.mirror.mirror_place import MirrorPlace
from mirrored import changed_worker, vanished, workers
from needed import missing
from stores import mounted
from toy import Toy, events, names, new_run, waited_for

SLOW = """
import time
from holdfast.mirror import replicator, retrying, sending
replicator.RETRY_S, retrying.LONGEST_WAIT_S = 0.1, 0.2
real = sending._read_file
def read(*args):
    for piece in real(*args):
        time.sleep({pause_s} if len(piece) > {least} else 0)
        yield piece
sending._read_file = read
"""


@pytest.fixture
def slow_worker(tmp_path, monkeypatch):
    """A function: from then on the workers of runs need so many seconds for each piece of a file, if it is that big.

    They do not wait long for a place that is away.
    """

    def slow(pause_s, least=0):
        changed_worker(SLOW.format(pause_s=pause_s, least=least), tmp_path, monkeypatch)

    return slow


def test_each_outage_has_an_end_in_a_run_that_always_lags(tmp_path, monkeypatch, capsys, slow_worker):
    """Something newer always waits to be copied. Each outage is told, and each end, with what is still lacking."""
    slow_worker(0.1)
    monkeypatch.setattr(mirror_place, "SAY_S", 0.0)
    (tmp_path / "mnt").mkdir()
    place, said, away = tmp_path / "mnt" / "place", [], []
    left = ["stands still", "answers again", "stands still", "answers again"]
    ends = time.monotonic() + 30
    with new_run(tmp_path / "run", Toy(), mirror=place, drain=0.0, keep=Last(2)) as run:
        for _ in run.steps(100_000):
            time.sleep(0.01)
            said.append(capsys.readouterr().err)
            if not left or time.monotonic() > ends:
                break
            if left[0] == "stands still" and not away and events(tmp_path / "run", "mirrored"):
                away.append(vanished(place))
                away[0].__enter__()
            if left[0] in said[-1] and left.pop(0) == "stands still":
                away.pop().__exit__(None, None, None)
        mirrors = run._session.mirrors
    text = "".join(said)
    assert not left, text
    back = [line for line in text.splitlines() if "answers again" in line]
    assert any("lacks step-" in line for line in back), text
    assert all("lacks step-" in line or line.endswith("lacks nothing") for line in back), text
    assert [2, 2] == [text.count(each) for each in ("stands still", "answers again")]
    assert [2, 2] == [len(events(tmp_path / "run", kind)) for kind in ("mirror_failed", "mirror_back")]
    assert not any(each.down for each in mirrors.places)  # so that the decision to stop counts their copies


def test_what_the_journal_keeps_is_the_trouble_itself(tmp_path, capsys):
    """It is read after the run has ended, too."""
    place = tmp_path / "mnt" / "place"
    said = []
    with new_run(tmp_path / "run", Toy(), mirror=place, without=place, drain=1.0) as run:
        for _ in run.steps(1):
            waited_for(lambda: said.append(capsys.readouterr().err) or "copying stands still: " in "".join(said))
    (failed,) = events(tmp_path / "run", "mirror_failed")
    assert "training goes on" not in failed["error"]
    assert "copying stands still" not in failed["error"]
    assert failed["error"] in "".join(said)


@pytest.mark.skipif(missing("mount", "umount", root=True) != "", reason=missing("mount", "umount", root=True))
def test_the_space_of_what_is_pruned_is_free_before_it_is_measured(tmp_path, slow_worker, monkeypatch, capsys):
    """A worker that stands still in the middle of a file keeps its space, on a real file system: it is ended."""
    monkeypatch.setattr(mirrors, "CANCEL_S", 0.2)
    monkeypatch.setattr(mirrors, "END_S", 0.2)
    slow_worker(60.0, least=1 << 20)
    w = np.zeros(1 << 18)  # 2 MiB: of three checkpoints one must go
    with (
        mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=6200k", "holdfast") as disk_here,
        Run(disk_here / "run", {"w": w}, mirror=tmp_path / "place", every=Every(steps=1), keep=Last(1), drain=0) as run,
    ):
        for step in run.steps(5):
            if step:
                run.wait()
                waited_for(lambda: held(disk_here), 10)
            w += step + 1
        root = run.path
        found = [names(root), *(events(root, kind) for kind in ("save_failed", "mirrors_gave_way"))]
    assert (["step-000000005"], [], True) == (found[0][-1:], found[1], bool(found[2])), capsys.readouterr().err
    assert "mirrors' process ended" not in capsys.readouterr().err


def held(disk):
    """The files there that the worker has open."""
    links = [each for pid in workers() for each in Path(f"/proc/{pid}/fd").glob("*")]
    return [each for each in links if each.exists() and os.readlink(each).startswith(f"{disk}/run/checkpoints/step-")]


def test_a_place_that_flaps_is_told_of_once_a_minute(monkeypatch):
    """Of each kind; and in the end the terminal has told how it is."""
    now = [1000.0]
    monkeypatch.setattr("holdfast.mirror.mirror_place.time.monotonic", lambda: now[0])
    place, lines = MirrorPlace(0, "there", Last(1), None), []
    for second in range(600):
        now[0] += 1.0
        if second < 301:
            place.note_interrupted("why") if second % 2 else place.note_answering()
        elif second == 301:
            place.note_interrupted("for good")
        if place.next_message_in_s <= 0:
            lines.append((second, place.down))
            place.note_message_printed()
    assert (1, "why") == lines[0]
    for kind in (True, False):
        told = [second for second, down in lines if bool(down) == kind]
        assert all(later - first >= 60 for first, later in pairwise(told))
    assert 5 <= len(lines) <= 12
    assert "for good" == lines[-1][1]
    assert mirror_place.NEVER == place.next_message_in_s
