"""A run and its mirrors: real worker processes, and folders as places."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from threading import Timer
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from holdfast import Every, Last, Run, Store, disk
from holdfast.errors import Stopped, StoreError, Superseded, UsageError
from holdfast.mirror.records import ResumeOrigin
from holdfast.run import mirror_start
from mirrored import (
    await_copy,
    changed_worker,
    claim,
    command,
    copies,
    flip,
    look,
    run_id,
    steps_at,
    suspended,
    toy_at,
    vanished,
    workers,
)
from needed import missing
from stores import mounted
from toy import Toy, events, launch, names, new_run, script, waited_for


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """A place that is silent is not waited for as long as a real one."""
    monkeypatch.setattr(mirror_start, "LOOK_S", 4.0)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "mnt").mkdir()
    return tmp_path / "mnt" / "place"


def train(path, steps, mirror, *, pause=None, **options):
    """Train up to that many steps; return the toy."""
    random.seed(1)
    toy = Toy()
    with new_run(path, toy, mirror=mirror, **options) as run:
        for step in run.steps(steps):
            toy.learn(step)
            run.log(value=toy.value % 1000)
            if pause is not None:
                pause(run)
    return toy


def alone(path, steps):
    """What an undisturbed run without mirrors comes to."""
    return train(path, steps, None).value


# What a copy is --------------------------------------------------------------------------------------------------


def test_a_copy_is_whole_and_needs_no_holdfast(tmp_path, place):
    """`holdfast show` reads it, safetensors reads it, and it is what was saved; what did not change is copied there."""
    w, frozen = np.arange(6.0), np.ones(1 << 17)
    with Run(tmp_path / "run", {"w": w, "frozen": frozen}, mirror=place, every=Every(steps=1), keep=Last(9)) as run:
        for step in run.steps(3):
            w += step
            await_step(run, place)
    assert [(1, name) for name in names(tmp_path / "run")] == copies(place)
    newest = place / "checkpoints/000001/step-000000003"
    held = {}
    for file in newest.glob("*.safetensors"):
        held |= load_file(file)
    assert sorted(map(sum, (w, frozen))) == sorted(sum(value) for value in held.values() if value.dtype == "float64")
    assert "frozen" in holdfast("show", newest)
    sent = [(each["sent_bytes"], each["size_bytes"]) for each in events(tmp_path / "run", "mirrored")]
    assert sent[0][0] == sent[0][1] > frozen.nbytes
    assert 1 < sent[2][0] < frozen.nbytes < sent[2][1], sent
    assert not workers()


def holdfast(*words):
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast", *map(str, words)], capture_output=True, text=True, check=True
    )
    return ended.stdout


def await_step(run, place):
    """Return when the checkpoint of the step before this one is at the place."""
    if run.step:
        await_copy(place, f"step-{run.step:09d}")


def test_each_place_keeps_what_its_rule_says(tmp_path, place):
    """Whatever the run itself keeps; and `holdfast ls` says where each is, and what a lost node would lose."""
    ends, last = place, place.with_name("last")
    train(
        tmp_path / "run",
        7,
        {ends: Every(steps=3), last: Last(2)},
        keep=Last(1),
        pause=lambda run: (await_step(run, ends), await_step(run, last)),
    )
    # one whose copy was confirmed after the last save is deleted by the next one
    assert names(tmp_path / "run") in (["step-000000007"], ["step-000000006", "step-000000007"])
    assert [6, 7] == steps_at(last)
    assert {1, 3, 6, 7} == {*steps_at(ends)}
    assert events(tmp_path / "run", "mirror_removed")
    listed = holdfast("ls", tmp_path / "run")
    assert f"if this disk is lost, nothing that is saved is: step-000000007 is at {ends}, {last}" in listed
    assert f"{ends} {last}" in listed
    assert f"copies if this disk is lost, nothing that is saved is: step-000000007 is at {ends}, {last}" in holdfast(
        "status", tmp_path / "run"
    )


def test_a_pinned_copy_stays_on_a_new_machine(tmp_path, place):
    """That machine has the place alone, and so no pin of the run's directory."""

    def pause(run):
        await_step(run, place)
        if run.step == 2:
            Store(tmp_path / "a").pin(2)

    train(tmp_path / "a", 6, place, keep=Last(1), pause=pause)
    assert [2, 6] == steps_at(place)
    train(tmp_path / "b", 9, place, keep=Last(1), pause=lambda run: await_step(run, place))
    assert [2, 9] == steps_at(place)


def test_without_mirrors_nothing_of_them_is_imported_or_started(tmp_path):
    """No process, no thread, no module but that of the options."""
    ended = launch(
        script(
            tmp_path,
            """
            import threading
            with new_run(RUN, toy) as run:
                for step in run.steps(2):
                    toy.learn(step)
                    print([each for each in sys.modules if each.startswith("holdfast.mirror.")][1:])
                    print([each.name for each in threading.enumerate() if "mirror" in each.name])
            """,
        )
    )
    assert (0, "[]\n" * 4) == (ended.code, ended.out), ended


# Never in the way ------------------------------------------------------------------------------------------------


def test_a_place_that_goes_away_is_told_once_and_caught_up(tmp_path, place, capsys):
    """Training goes on; the journal and the terminal say it once; when it is back, the newest is copied."""
    gone = []

    def pause(run):
        if run.step == 1:
            await_copy(place, "step-000000001")
            gone.append(vanished(place))
            gone[0].__enter__()
        if run.step == 4:
            run.wait()
            waited_for(lambda: "copying stands still" in capsys_so_far(capsys, said))
            gone[0].__exit__(None, None, None)

    said = []
    train(tmp_path / "run", 6, place, pause=pause)
    text = capsys_so_far(capsys, said)
    assert 1 == text.count("copying stands still"), text
    assert 6 in steps_at(place)
    assert 6 == len(names(tmp_path / "run"))
    assert "is not at" not in text


def capsys_so_far(capsys, said):
    said.append(capsys.readouterr().err)
    return "".join(said)


@pytest.mark.parametrize("paused", ["from the first copy", "from the end of the block"])
def test_a_suspended_worker_stalls_no_step_and_drain_bounds_the_end(tmp_path, place, capsys, paused):
    """The saves' stalls, as journalled, stay short; the end takes `drain`, and says what lacks."""
    stopped, saves = [], []

    def pause(run):
        if run.step == 2 and paused == "from the first copy":
            await_copy(place, "step-000000001")
            stop()
        if run.step == 19:
            run.wait()
            saves.extend(each["stall_s"] for each in events(tmp_path / "run", "saved"))
            stop()

    def stop():
        if not stopped:
            stopped.append(suspended(workers()[0]))
            stopped[0].__enter__()

    began_s = []
    train(tmp_path / "run", 20, place, drain=1.5, pause=lambda run: (pause(run), began_s.append(time.monotonic())))
    took_s = time.monotonic() - began_s[-1]
    assert 1.0 < took_s < 15
    assert 19 >= len(saves) >= 18
    assert max(saves) < 1.0
    assert 20 == len(names(tmp_path / "run"))
    assert not workers()
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"step-000000020 is not at {place}" in last
    assert [("step-000000020", str(place))] == [
        (e["checkpoint"], e["place"]) for e in events(tmp_path / "run", "undrained")
    ]
    train(tmp_path / "run", 20, place, take_over=True)
    assert 20 in steps_at(place)


def test_what_is_being_copied_is_not_pruned(tmp_path, place):
    """While the worker stands still, the rule removes all others; afterwards that one as well."""
    held: list[Any] = []

    def pause(run):
        if run.step == 1:
            await_copy(place, "step-000000001")  # from here on each save is copied at once
        if run.step == 2:
            held.append(suspended(workers()[0]))
            held[0].__enter__()
        if run.step == 6:
            run.wait()
            held.append(names(tmp_path / "run"))
            held[0].__exit__(None, None, None)

    train(tmp_path / "run", 9, place, keep=Last(1), pause=pause)
    kept = held[1]
    assert 2 <= len(kept) <= 4, kept
    assert int(kept[0].split("-")[1]) <= 3
    assert names(tmp_path / "run")[-1] == "step-000000009"
    assert len(names(tmp_path / "run")) <= 2  # what was being copied at the last save, the next one prunes
    assert 9 in steps_at(place)


def test_when_space_is_short_copying_gives_way(tmp_path, place, monkeypatch, capsys):
    """The save succeeds, the checkpoint that waited is removed, and it is told."""
    real, full = disk.free_bytes, []

    def free(path):
        kept = len(list((tmp_path / "run" / "checkpoints").glob("step-*")))
        return 0 if full and kept > 2 else real(path)

    monkeypatch.setattr(disk, "free_bytes", free)
    held = []

    def pause(run):
        if run.step == 1:
            await_copy(place, "step-000000001")
            held.append(suspended(workers()[0]))
            held[0].__enter__()
        if run.step == 5:
            run.wait()
            full.append(True)
        if run.step == 8:
            run.wait()
            full.clear()
            held[0].__exit__(None, None, None)

    train(tmp_path / "run", 9, {place: Every(steps=1)}, keep=Last(1), pause=pause, background=False)
    assert "the disk is full" in capsys.readouterr().err
    assert events(tmp_path / "run", "mirrors_gave_way")
    assert not events(tmp_path / "run", "save_failed")
    assert 9 in steps_at(place)


def test_a_silent_place_is_no_matter_where_another_shows_that_nothing_is_newer(tmp_path, place):
    """The start goes on and says so; the silent place is caught up. But a place that knows less proves nothing."""
    second = tmp_path / "second"
    train(tmp_path / "run", 3, [place, second])
    away = vanished(place)
    away.__enter__()
    with pytest.raises(StoreError, match="does not begin"):
        train(tmp_path / "run", 4, [place, tmp_path / "third"])
    back = []

    def pause(run):
        if run.step == 4:
            away.__exit__(None, None, None)
            waited_for(lambda: 1 < len(look(place).claims))
            back.append(run.step)

    toy = train(tmp_path / "run", 6, [place, second], pause=pause)
    assert [4] == back
    assert alone(tmp_path / "alone", 6) == toy.value
    assert [6, 6] == [steps_at(each)[-1] for each in (place, second)]
    shutil.rmtree(tmp_path / "run")
    assert toy.value == train(tmp_path / "run", 6, [place, second]).value


# Starting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scratch", ["empty", "stale"])
def test_a_place_that_does_not_answer_fails_the_start(tmp_path, place, scratch):
    """With one line that says how to insist; nothing was written, and the next start goes on from the newest."""
    train(tmp_path / "run", 3, place)
    if scratch == "empty":
        shutil.rmtree(tmp_path / "run")
    with vanished(place):
        with pytest.raises(StoreError) as failed:
            train(tmp_path / "run", 5, place)
        text = str(failed.value)
        assert f'without="{place}"' in text
        assert "\n" not in text
        assert ("allow_fresh" in text) == (scratch == "empty")
        assert 1 == failed.value.exit_code
    assert alone(tmp_path / "alone", 5) == train(tmp_path / "run", 5, place).value
    assert 5 in steps_at(place)


@pytest.mark.parametrize("insist", [{"without": True}, {"allow_fresh": True}, {"environment": True}])
def test_a_start_without_a_place_can_be_insisted_on(tmp_path, place, insist, monkeypatch):
    """From scratch, as nothing is here; the place is claimed and caught up when it answers."""
    if insist.pop("environment", False):
        monkeypatch.setenv("HOLDFAST_WITHOUT", f"sftp://elsewhere/run, {place}")
    if "without" in insist:
        insist["without"] = [place]
    away = vanished(place)
    away.__enter__()
    back = []

    def pause(run):
        if run.step == 2:
            away.__exit__(None, None, None)
        if run.step == 3:
            waited_for((place / "checkpoints").exists)
            back.append(run.step)

    train(tmp_path / "run", 4, place, pause=pause, **insist)
    assert [3] == back
    assert 4 in steps_at(place)


def test_a_place_left_out_that_a_later_attempt_has_claimed_is_left_alone(tmp_path, place, capsys):
    """The run that began without it goes on, and says so once; nothing of it is written there."""
    train(tmp_path / "run", 3, place)
    away, said = vanished(place), []
    away.__enter__()
    hidden = place.parent.with_name("mnt.away") / place.name
    claim(hidden, 3, {"host": "elsewhere", "pid": 1}, ended=True, origin=ResumeOrigin(1, "step-000000003"))
    before = copies(hidden)

    def pause(run):
        if run.step == 4:
            away.__exit__(None, None, None)
            waited_for(lambda: "leaves it alone" in capsys_so_far(capsys, said))

    train(tmp_path / "run", 7, place, without=place, pause=pause)
    assert before == copies(place)
    assert [1, 3] == [each.attempt for each in look(place).claims]
    assert 1 == capsys_so_far(capsys, said).count("leaves it alone")
    toy = train(tmp_path / "run", 8, place)
    assert alone(tmp_path / "alone", 8) == toy.value
    assert 4 == len(list((tmp_path / "run" / "quarantine").glob("*-other-lineage")))


def test_ctrl_c_again_leaves_at_once_and_the_next_start_is_not_refused(tmp_path, place):
    """Whatever still waits to be copied; the places are told that the attempt has ended."""

    def pause(run):
        if run.step == 3:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", 9, place, pause=pause)
    assert look(place).claims[0].ended
    assert alone(tmp_path / "alone", 9) == train(tmp_path / "elsewhere", 9, place).value


def test_an_error_in_the_loop_leaves_the_last_save_at_the_place(tmp_path, place):
    """The copies are awaited as at every end; the error is the script's own."""

    def pause(run):
        if run.step == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", 9, place, pause=pause)
    assert 3 == steps_at(place)[-1]
    assert look(place).claims[0].ended


def test_a_new_machine_goes_on_from_the_place_alone(tmp_path, place):
    """With the same bits as the undisturbed run, as the same run, and its attempts counted over both machines."""
    stop_after(tmp_path / "here", 3, place)
    toy = train(tmp_path / "there", 6, place)
    assert alone(tmp_path / "alone", 6) == toy.value
    assert {toy.value} == toy_at(place, 6)
    assert [2, run_id(place)] == [
        Store(tmp_path / "there").latest().head.attempt,
        Store(tmp_path / "there").latest().head.run,
    ]
    assert ["step-000000003"] == [each["checkpoint"] for each in events(tmp_path / "there", "fetched")]
    assert [1, 2] == [each.attempt for each in look(place).claims]


def test_a_run_that_goes_back_is_copied_again(tmp_path, place):
    """The copies of what came after that step are not of its lineage, although they have the same names."""
    for steps, back in ((6, None), (5, 3)):
        train(tmp_path / "run", steps, place, go_back=back)
    assert (2, "step-000000005") in copies(place)


def stop_after(path, steps, place, **options):
    with pytest.raises(Stopped) as stopped:
        train(
            path,
            100,
            place,
            pause=lambda run: run.step == steps - 1 and os.kill(os.getpid(), signal.SIGTERM),
            **options,
        )
    assert 75 == stopped.value.code
    return stopped.value


def test_stale_scratch_is_set_aside_where_the_run_went_on_elsewhere(tmp_path, place):
    """Node A's last save never left it, node B went on without; back on A the run goes on from B's."""
    held: list[Any] = []

    def hold(run):
        if run.step == 3:
            await_copy(place, "step-000000003")
            held.append(suspended(workers()[0]))
            held[0].__enter__()
        if run.step == 5:
            run.wait()
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        train(tmp_path / "a", 100, place, pause=hold, drain=0)
    assert 5 <= max(int(name.split("-")[1]) for name in names(tmp_path / "a"))
    stop_after(tmp_path / "b", 8, place, take_over=True)
    ghost = Store(tmp_path / "a").latest()
    shutil.copytree(ghost.path, place / "checkpoints/000001" / ghost.path.name)  # a late manifest of the first attempt
    assert (1, ghost.path.name) in copies(place)
    toy = train(tmp_path / "a", 10, place)
    assert alone(tmp_path / "alone", 10) == toy.value == toy_at(place, 10).pop()
    aside = sorted(path.name for path in (tmp_path / "a" / "quarantine").iterdir())
    assert aside
    assert all(name.endswith("-other-lineage") for name in aside)
    assert ["step-000000008"] == [each["checkpoint"] for each in events(tmp_path / "a", "fetched")]
    shutil.rmtree(tmp_path / "a")
    assert toy.value == train(tmp_path / "c", 10, place).value


@pytest.mark.skipif(missing("mount", "umount", root=True) != "", reason=missing("mount", "umount", root=True))
def test_a_place_on_another_file_system(tmp_path):
    """A small one that fills up: it is told once, and training goes on; emptied, it gets the newest."""
    with mounted(tmp_path / "other", "-t", "tmpfs", "-o", "size=256k", "holdfast") as disk_there:
        ballast, place = disk_there / "ballast", disk_there / "place"
        ballast.write_bytes(bytes(200 << 10))

        def pause(run):
            if run.step == 2:
                waited_for(lambda: events_shown(run, "mirror_failed"))
                ballast.unlink()

        w = np.zeros(1 << 13)
        with Run(tmp_path / "run", {"w": w}, mirror=place, every=Every(steps=1), keep=Last(1)) as run:
            for step in run.steps(5):
                w += step
                pause(run)
        assert [5] == steps_at(place)[-1:]
        assert 1 == len(events(tmp_path / "run", "mirror_failed"))


def events_shown(run, kind):
    run.metrics()  # writes the journal
    return events(run.path, kind)


def test_another_run_at_the_place_is_refused(tmp_path, place):
    """And an attempt that may be alive elsewhere is, unless it is known to be gone."""
    train(tmp_path / "run", 2, place)
    with pytest.raises(UsageError, match="different runs"):
        train(tmp_path / "other", 2, place.with_name("place2"))
        train(tmp_path / "other", 2, place)
    claim(place, 7, {"host": "elsewhere", "pid": 1})
    with pytest.raises(UsageError, match="attempt 7 may still be running: pid 1 on elsewhere"):
        train(tmp_path / "run", 3, place)
    train(tmp_path / "run", 3, place, take_over=True)
    assert 8 == Store(tmp_path / "run").latest().head.attempt


# One owner -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asleep", ["worker", "run"])
def test_the_loser_of_a_place_ends_and_nothing_is_mixed(tmp_path, place, asleep):
    """It is suspended in the middle, or its worker is; the successor on another node goes on; then it wakes up."""
    body = """
        place = sys.argv[1]
        with new_run(RUN, toy, mirror=place) as run:
            for step in run.steps(1000):
                toy.learn(step)
                run.log(value=toy.value % 1000)
                if run.step == 2:
                    while not os.path.exists(place + "/checkpoints/000001/step-000000002/manifest.json"):
                        time.sleep(0.01)
                    from mirrored import workers
                    pid = workers()[0] if sys.argv[2] == "worker" else os.getpid()
                    print(pid, flush=True)
                    os.kill(pid, signal.SIGSTOP)
                time.sleep(0.02)
        """
    path = script(tmp_path, body)
    from toy import Ended, start

    loser = start(path, place, asleep)
    sleeper = int(loser.stdout.readline())
    toy = train(tmp_path / "b", 6, place, take_over=True)
    os.kill(sleeper, signal.SIGCONT)
    ended = Ended(loser)
    assert 1 == ended.code, ended
    assert "Superseded" in ended.err, ended
    assert alone(tmp_path / "alone", 6) == toy.value
    found = look(place)
    assert 2 == max(copy.attempt for copy in found.copies)
    assert {"step-000000001", "step-000000002"} >= {copy.name for copy in found.copies if copy.attempt == 1}
    again = train(tmp_path / "c", 6, place)
    assert toy.value == again.value


def test_who_is_superseded_at_one_place_writes_no_more_at_the_others(tmp_path, place):
    """The later attempt was begun without them."""
    second = tmp_path / "second"

    def pause(run):
        if run.step == 2:
            await_step(run, second)
            claim(place, 2, {"host": "elsewhere", "pid": 1})
        time.sleep(0.05)

    with pytest.raises(Superseded):
        train(tmp_path / "run", 100, [place, second], pause=pause)
    assert look(second).claims[0].ended


def test_the_loser_of_a_race_does_not_note_that_the_winner_has_ended(tmp_path, place, monkeypatch):
    """Another process claims the place after the look: it is alive, and the next start is told so."""
    train(tmp_path / "run", 2, place)
    real = mirror_start.MirrorStart.claim

    def late(self, *args):
        monkeypatch.undo()
        claim(place, 2, {"host": "elsewhere", "pid": 1})
        return real(self, *args)

    monkeypatch.setattr(mirror_start.MirrorStart, "claim", late)
    with pytest.raises(StoreError, match="another attempt began"):
        train(tmp_path / "run", 4, place)
    assert [True, False] == [each.ended for each in look(place).claims]
    with pytest.raises(UsageError, match="attempt 2 may still be running"):
        train(tmp_path / "run", 4, place)


def test_a_place_that_tells_of_another_present_late_is_left_alone(tmp_path, place, capsys):
    """It was left out at the start, and attempt 2 was made there by another process: only there nothing is copied."""
    other, said, back = place, [], []
    forked = tmp_path / "other" / "place"
    forked.parent.mkdir()
    train(tmp_path / "run", 2, {other: Last(9), forked: Last(9)})
    away = vanished(forked)
    away.__enter__()
    hidden = forked.parent.with_name("other.away") / forked.name
    claim(hidden, 2, {"host": "elsewhere", "pid": 1}, ended=True, origin=ResumeOrigin(1, "step-000000001"))
    train(tmp_path / "run", 3, [other, forked], without=forked, drain=1.0)

    def pause(run):
        if run.step == 3 and not back:
            back.append(away.__exit__(None, None, None))
            waited_for(lambda: "leaves it alone" in capsys_so_far(capsys, said))

    train(tmp_path / "run", 6, [other, forked], without=forked, pause=pause)
    assert "nothing is copied any more" not in capsys_so_far(capsys, said)
    assert 6 in steps_at(other)
    assert 6 not in steps_at(forked)


KEEPS_ALL = """
from holdfast.mirror import remote
from holdfast.mirror.place import Refused
def refuse(*args):
    raise Refused("no deletions")
remote.RemoteRun.remove = refuse
"""


def test_a_place_that_refuses_removals_is_told_of_the_end(tmp_path, place, monkeypatch, capsys):
    """As a bucket whose policy forbids them: the copies are made, the next machine is not refused; it is said once."""
    changed_worker(KEEPS_ALL, tmp_path, monkeypatch)
    train(tmp_path / "run", 4, place, keep=Last(1), pause=lambda run: await_step(run, place))
    assert 4 in steps_at(place)
    assert [True] == [each.ended for each in look(place).claims]
    told = capsys.readouterr().err
    assert ("stands still" in told, told.count("is not removed there: no deletions")) == (False, 1), told


# Kills -----------------------------------------------------------------------------------------------------------


def test_a_kill_in_the_middle_of_a_copy_loses_nothing(tmp_path, place):
    """KILL of the run, and of its worker; the next start copies what lacks, and the end has the same bits."""
    body = """
        place = sys.argv[1]
        from mirrored import workers
        with new_run(RUN, toy, mirror=place) as run:
            for step in run.steps(8):
                toy.learn(step)
                run.log(value=toy.value % 1000)
                if run.step == 3 and sys.argv[2] == "run":
                    run.wait()
                    print(workers()[0], flush=True)
                    os.kill(workers()[0], signal.SIGSTOP)
                    send("KILL")
                if run.step == 3 and sys.argv[2] == "worker":
                    os.kill(workers()[0], signal.SIGKILL)
        print(toy.value)
        """
    path = script(tmp_path, body)
    ended = launch(path, place, "run")
    assert -9 == ended.code, ended
    worker = int(ended.out)
    os.kill(worker, signal.SIGCONT)
    ended = launch(path, place, "worker")
    assert 0 == ended.code, ended
    assert alone(tmp_path / "alone", 8) == int(ended.out)
    assert {int(ended.out)} == toy_at(place, 8)
    waited_for(lambda: b"holdfast.mirror" not in command(worker))


def test_the_end_waits_for_a_place_that_a_new_worker_has_not_reached_yet(tmp_path, place):
    """Its process was killed, and the place is away when the last checkpoint is saved."""
    away = vanished(place)

    def pause(run):
        if run.step == 2:
            await_copy(place, "step-000000001")
            away.__enter__()
            (first,) = workers()
            os.kill(first, signal.SIGKILL)
            waited_for(lambda: workers() not in ([], [first]))
            Timer(2.5, away.__exit__, [None] * 3).start()
            time.sleep(1.5)

    train(tmp_path / "run", 3, place, pause=pause)
    assert 3 in steps_at(place)


# Healing ---------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_healed_with_its_siblings(tmp_path, place, capsys):
    """The file that checkpoints share comes from the place; all have the new one, and nothing is set aside."""
    w, frozen = np.arange(6.0), np.ones(1 << 17)
    with Run(tmp_path / "run", {"w": w, "frozen": frozen}, mirror=place, every=Every(steps=1), keep=Last(9)) as run:
        for step in run.steps(3):
            w += step
    checkpoints = Store(tmp_path / "run").checkpoints()
    shared = max(checkpoints[-1].path.glob("*.safetensors"), key=lambda path: path.stat().st_nlink)
    links = shared.stat().st_nlink
    assert links >= 2
    flip(shared)
    assert links == sum(bool(list(each.problems())) for each in checkpoints)
    w2 = np.zeros(6)
    with Run(
        tmp_path / "run", {"w": w2, "frozen": np.zeros(1 << 17)}, mirror=place, keep=Last(9), every=Every(steps=1)
    ) as run:
        assert [] == list(run.steps(3))
    assert (w == w2).all()
    found = Store(tmp_path / "run").checkpoints()
    assert names(tmp_path / "run") == [each.path.name for each in found]
    assert not [problem for each in found for problem in each.problems(cold=True)]
    assert links == shared.stat().st_nlink
    assert not list((tmp_path / "run" / "quarantine").iterdir())
    assert links == len(events(tmp_path / "run", "healed")[0]["of"])
    assert "digest checked" in capsys.readouterr().err


def test_a_damaged_manifest_comes_whole_from_the_place(tmp_path, place):
    """What is damaged is in quarantine; the same checkpoint is fetched, and no step is done again."""
    train(tmp_path / "run", 3, place)
    flip(tmp_path / "run/checkpoints/step-000000003/manifest.json")
    toy = train(tmp_path / "run", 4, place)
    assert alone(tmp_path / "alone", 4) == toy.value
    assert ["step-000000003"] == [each["checkpoint"] for each in events(tmp_path / "run", "fetched")]
    assert 1 == len(list((tmp_path / "run" / "quarantine").iterdir()))


def test_a_damaged_copy_is_passed_over(tmp_path, place):
    """For the same one at the next place; where no other has it, the next older one is fetched, and it is told."""
    second = place.with_name("second")
    train(tmp_path / "run", 3, [place, second])
    shutil.rmtree(tmp_path / "run")
    flip(next(iter(place.glob("checkpoints/*/step-000000003/*.safetensors"))))
    assert alone(tmp_path / "alone", 4) == train(tmp_path / "run", 4, [place, second]).value
    assert [("step-000000003", str(second))] == [
        (e["checkpoint"], e["place"]) for e in events(tmp_path / "run", "fetched")
    ]


# At the end ------------------------------------------------------------------------------------------------------


def test_a_stop_is_a_stop_although_a_copy_lacks(tmp_path, place, capsys):
    """75, "run me again", and the very last line says what is not there."""

    def pause(run):
        if run.step == 2:
            await_copy(place, "step-000000001")
            os.kill(workers()[0], signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped) as stopped:
        train(tmp_path / "run", 9, place, pause=pause, drain=0.5)
    assert 75 == stopped.value.code
    *_, before, last = capsys.readouterr().err.splitlines()
    assert "run me again" in before
    assert f"step-000000003 is not at {place}" in last
    assert "stop" == [e["event"] for e in events(tmp_path / "run", "stop")][-1]


def test_the_decision_to_stop_counts_the_drain(tmp_path, place, monkeypatch):
    """The last copy's time is needed before the deadline, as the save's is."""
    from holdfast.mirror.mirrors import Mirrors

    monkeypatch.setattr(Mirrors, "expected_drain_s", 30.0)
    began = time.time()
    with pytest.raises(Stopped) as stopped:
        train(tmp_path / "run", 10**6, place, deadline=began + 32.0, every=None, pause=lambda run: time.sleep(0.02))
    assert "deadline" in str(stopped.value)
    assert time.time() - began < 20
    assert steps_at(place)


def test_the_end_waits_for_no_copy_beyond_the_deadline(tmp_path, place):
    """Whatever `drain` allows."""

    def pause(run):
        if run.step == 1:
            await_copy(place, "step-000000001")
            os.kill(workers()[0], signal.SIGSTOP)
        time.sleep(0.02)

    deadline = time.time() + 5.0
    with pytest.raises(Stopped) as stopped:
        train(tmp_path / "run", 10**6, place, deadline=deadline, drain=600, keep=Last(2), pause=pause)
    assert "deadline" in str(stopped.value)
    assert time.time() < deadline + 3  # the worker, which stands still, is ended after that
    assert events(tmp_path / "run", "stop")[-1]["time"] < deadline


def test_a_drill_does_not_touch_the_place(tmp_path, place):
    """It says so in one line."""
    ended = launch(
        script(
            tmp_path,
            """
            with new_run(RUN, toy, mirror=sys.argv[1]) as run:
                for step in run.steps(3):
                    toy.learn(step)
            """,
        ),
        place,
        HOLDFAST_DRILL="{}",
    )
    assert 0 == ended.code, ended
    assert 1 == ended.err.count("not mirrored")
    assert not place.exists()


# Options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"drain": -1}, "drain=-1"),
        ({"drain": True}, "drain=True"),
        ({"without": "/elsewhere"}, "has no mirror="),
        ({"mirror": "/a", "without": "/b"}, "without=/b"),
        ({"mirror": ["/a", "/a"]}, "twice"),
        ({"mirror": ["/a", "/b/../a"]}, "twice"),
        ({"mirror": {"/a": 3}}, "wants a rule"),
        ({"mirror": ""}, "no URL"),
        ({"mirror": 7}, "7"),
    ],
)
def test_options_are_checked_at_once(tmp_path, options, says):
    """And a place in the run's own directory is refused."""
    with pytest.raises((UsageError, TypeError), match=says):
        Run(tmp_path / "run", {"toy": Toy()}, **options)
    for inside in (tmp_path / "run", tmp_path / "run" / "copies", tmp_path):
        with pytest.raises(UsageError, match="lie in each other"):
            Run(tmp_path / "run", {"toy": Toy()}, mirror=inside)
