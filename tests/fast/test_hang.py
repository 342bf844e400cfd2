"""When is it a hang: the pure judge, the memory by which it hears of steps, and how often it is wrong."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast import Every
from holdfast.children import processes, steps
from holdfast.children.steps import SlotView, StepMemory, StepSlot
from holdfast.cluster import job_leader
from holdfast.run import alive
from holdfast.supervise import missing, signs
from holdfast.supervise.hang import FEW, FEW_TIMES, FLOOR_S, LOOK_S, RARE, TIMES, UNKNOWN, HangJudge, Observation
from holdfast.supervise.judge import CommandAttempt, decide_next_step
from holdfast.supervise.stacks import StackMemory, innermost_user_line
from toy import Toy, new_run

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from false_hangs import KINDS, alarms

STEP, FIRST = steps.PHASES[steps.STEP], steps.PHASES[steps.FIRST]
SAVE, OVER = steps.PHASES[steps.SAVE], steps.PHASES[steps.OVER]


class Watched:
    """A judge and its clock."""

    def __init__(self, **options):
        self.judge, self.now_s, self.beats = HangJudge(signs.PHASES, **options), 0.0, 1

    def lives(self, phase, *ended):
        """A sign of life, and the phases that ended before it."""
        self.beats += 1
        return self.stays(phase, self.judge.interval_s, ended=ended)

    def stays(self, phase, seconds, *, every_s=None, ended=(), **more):
        """Look for so long at a place that shows no sign of life; return what was told, with the time."""
        told, until_s = [], self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += every_s or self.judge.interval_s
            told += self.judge.find_hangs(self.now_s, [Observation(0, self.beats, phase, ended, **more)])
            ended = ()
        return [(hang.phase, hang.stuck_s) for hang in told]

    def knows(self, seconds, steps=1000):
        """So many steps of this duration are known."""
        self.lives(STEP, *[(STEP, seconds)] * steps)
        return self


def test_the_limit_is_ten_minutes_or_ten_slow_steps():
    """Of the run's own; it is told once, until there is a sign of life again."""
    watched = Watched().knows(1.0)
    assert [(STEP, pytest.approx(FLOOR_S + LOOK_S, abs=LOOK_S))] == watched.stays(STEP, 100 * FLOOR_S)
    watched.lives(STEP, (STEP, FLOOR_S))
    assert TIMES * FLOOR_S == watched.judge.limit_s(STEP)
    assert [] == watched.stays(STEP, TIMES * FLOOR_S - LOOK_S)
    assert 1 == len(watched.stays(STEP, 3 * LOOK_S))


def test_until_thirty_steps_are_known_the_limit_is_an_hour():
    """Ten times the slowest of a few says little."""
    limits = [Watched().knows(1.0, count).judge.limit_s(STEP) for count in (1, FEW - 1, FEW)]
    assert limits == [FEW_TIMES * FLOOR_S, FEW_TIMES * FLOOR_S, FLOOR_S]


def test_each_phase_has_a_pace_of_its_own():
    """A long save makes no step slow. What the first step compiled, a later one may compile again."""
    watched = Watched().knows(1.0)
    watched.lives(STEP, (SAVE, 500.0), (STEP, 1.0))
    assert FLOOR_S == watched.judge.limit_s(STEP)
    assert TIMES * 500 == watched.judge.limit_s(SAVE)
    assert (RARE * FLOOR_S, UNKNOWN * FLOOR_S) == tuple(
        Watched().judge.limit_s(phase) for phase in (steps.PHASES[steps.AFTER_BATCHES], FIRST)
    )
    watched.lives(STEP, (FIRST, 1000.0))
    assert 3000 == watched.judge.limit_s(STEP)


def test_what_a_script_does_after_its_run_is_its_own():
    assert [] == Watched(after_s=1.0).stays(OVER, 1000.0)


def test_the_users_limit_is_that_of_a_step():
    """Exactly, however slow the steps are; rare phases get a multiple."""
    watched = Watched(after_s=30.0).knows(20.0)
    assert 12 * 30.0 == Watched(after_s=30.0).judge.limit_s(STEP)
    assert (30.0, 90.0) == (watched.judge.limit_s(STEP), watched.judge.limit_s(SAVE))
    assert [(STEP, pytest.approx(30.0, abs=2 * watched.judge.interval_s))] == watched.stays(STEP, 60.0)


def test_time_in_which_the_supervisor_did_not_look_does_not_count():
    """Ctrl-Z, a suspended job, a sleeping laptop: a night of it is one look. Nor does it make a step slow."""
    watched = Watched().knows(1.0)
    assert [] == watched.stays(STEP, 86400.0, every_s=86400.0)
    watched.lives(STEP, (STEP, 86400.0))
    assert FLOOR_S == watched.judge.limit_s(STEP)
    assert 1 == len(watched.stays(STEP, 2 * FLOOR_S))


def test_a_debugger_is_no_hang():
    """Nor does the time that it took make a step slow."""
    watched = Watched().knows(1.0)
    assert [] == watched.stays(STEP, 86400.0, excused=True)
    watched.lives(STEP, (STEP, 86400.0))
    assert FLOOR_S == watched.judge.limit_s(STEP)


def test_a_supervisor_that_is_late_counts_less_but_counts():
    """On a busy machine every look is late; a hang is found all the same."""
    assert 1 == len(Watched().knows(1.0).stays(STEP, 3 * FLOOR_S, every_s=2 * LOOK_S))


def test_an_output_is_judged_once_it_was_regular():
    """A program that prints a line and then works in silence does not hang, unless the user has given a limit."""
    for lines, hangs in ((3, 0), (40, 1)):
        judged = HangJudge(signs.PHASES)
        told = [
            hang
            for look in range(lines + 1000)
            for hang in judged.find_hangs(LOOK_S * look, signs.observe_output(min(look, lines)))
        ]
        assert hangs == len(told)


def test_an_output_has_time_to_begin():
    """Also with a limit of the user's: what is imported first takes its time, in each start anew."""
    watched = HangJudge(signs.PHASES, after_s=10.0)
    for _ in range(2):
        watched.reset_places()
        assert UNKNOWN * 10 == watched.limit_s(signs.OUTPUT)
        for look in range(100):
            watched.find_hangs(watched.interval_s * look, signs.observe_output(look))
        assert 10 == watched.limit_s(signs.OUTPUT)


def test_a_file_that_never_comes_is_no_sign_of_life(tmp_path):
    watched, file = HangJudge(signs.PHASES, after_s=10.0), tmp_path / "alive"
    told = [bool(watched.find_hangs(number * watched.interval_s, signs.observe_file(file))) for number in range(1000)]
    assert [int(UNKNOWN * 10 / watched.interval_s) + 1] == [number for number, hangs in enumerate(told) if hangs]
    before = signs.observe_file(file)
    assert f"{file} is not there" == signs.describe_silence(signs.FILE, file)
    file.touch()
    assert before != signs.observe_file(file)
    assert "the file that it touches does not change" == signs.describe_silence(signs.FILE, file)


@pytest.mark.parametrize("kind", [*[*KINDS][:2], "stalls of 5 minutes", "compiled again"])
def test_no_run_that_goes_on_is_told_to_hang(kind):
    """A sample; `tools/false_hangs.py` has more of them, and distributions of which some are told."""
    for median_s, count in ((0.5, 1000), (30.0, 300)):
        for number in range(5):
            assert 0 == alarms(KINDS[kind](random.Random(f"{kind} {median_s} {number}"), median_s, count))


def test_the_simulation_can_fail():
    """Steps without a mean do set it off."""
    assert sum(alarms(KINDS["Pareto, alpha 1.2"](random.Random(number), 30.0, 500)) for number in range(30))


# The memory ----------------------------------------------------------------------------------------------------


def test_steps_reach_the_supervisor_through_memory():
    """With the time of each; a look sees what has ended since the one before."""
    memory = StepMemory()
    slot = StepSlot(memory.path, 3, 8)
    slot.mark_phase(steps.OPENING, 0)
    slot.mark_phase(steps.FIRST, 0)
    (seen,) = memory.read_slots()
    assert (os.getpid(), 3, 8, 0, steps.FIRST, [steps.OPENING]) == (
        seen.pid,
        seen.rank,
        seen.world,
        seen.step,
        seen.phase,
        [phase for phase, _ in seen.ended],
    )
    began = time.monotonic()
    for number in range(5):
        slot.mark_phase(steps.STEP, number)
    (seen,) = memory.read_slots()
    assert (4, [steps.FIRST, *4 * [steps.STEP]]) == (seen.step, [phase for phase, _ in seen.ended])
    assert sum(seconds for phase, seconds in seen.ended if phase == steps.STEP) <= time.monotonic() - began
    assert [] == memory.read_slots()[0].ended
    memory.clear()
    assert [] == memory.read_slots()


def test_a_step_costs_less_than_ten_microseconds():
    """Half of one on the machine where it was measured; this one may be busy."""
    slot = StepSlot(StepMemory().path, 0, 1)
    costs = []
    for _ in range(5):
        began = time.perf_counter()
        for number in range(10000):
            slot.mark_phase(steps.STEP, number)
        costs.append((time.perf_counter() - began) / 10000)
    assert min(costs) < 10e-6


def test_each_process_has_a_slot_of_its_own(tmp_path):
    """A process that claims one keeps nobody waiting, and a slot whose process is gone is free again."""
    memory, script = StepMemory(), tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom holdfast.children.steps import StepSlot\n"
        "slot = StepSlot(Path(sys.argv[1]), int(sys.argv[2]), 3)\nslot.mark_phase(2, 1)\n"
        "print('ready', flush=True)\ninput()"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, script, memory.path]
    ranks = [subprocess.Popen([*command, str(rank)], stdin=pipe, stdout=pipe) for rank in range(3)]
    assert 3 * [b"ready\n"] == [rank.stdout.readline() for rank in ranks]
    assert {0, 1, 2} == {each.rank for each in memory.read_slots()}
    for rank in ranks:
        rank.communicate(b"\n")
    StepSlot(memory.path, 7, 8).mark_phase(steps.STEP, 1)
    assert 3 == len(memory.read_slots())
    assert 7 in {each.rank for each in memory.read_slots()}


def test_more_steps_than_the_ring_holds_are_a_part_of_them():
    memory = StepMemory()
    slot = StepSlot(memory.path, 0, 1)
    for number in range(10000):
        slot.mark_phase(steps.STEP, number)
    (seen,) = memory.read_slots()
    assert 9999 == seen.step
    assert 100 < len(seen.ended) < 10000
    assert all(0 <= seconds < 10 for _, seconds in seen.ended)


def test_a_file_that_is_no_supervisors_memory_is_left_alone(tmp_path):
    """A pipe would block, and a file of the user's would be written into."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"mine")
    for name in ("pipe", "file", "nothing"):
        with pytest.raises(OSError):
            StepSlot(tmp_path / name, 0, 1)
    assert b"mine" == (tmp_path / "file").read_bytes()


def test_a_run_says_what_it_is_at(tmp_path, monkeypatch):
    """Each phase that has a pace of its own, and the number of steps."""
    memory, stacks = StepMemory(), StackMemory()
    alive.announce_memory(tmp_path, memory.path, stacks.path)
    monkeypatch.setenv(job_leader.SUPERVISOR, str(tmp_path))
    toy = Toy()
    with new_run(tmp_path / "run", toy, every=Every(steps=2), background=False) as run:
        for _ in run.epochs(2):
            for x in run.batches(range(3)):
                toy.learn(x)
    (seen,) = memory.read_slots()
    assert (os.getpid(), steps.OVER) == (seen.pid, seen.phase)
    assert [
        *(steps.OPENING, steps.FIRST, steps.STEP, steps.SAVE, steps.STEP, steps.STEP, steps.AFTER_BATCHES),
        *(steps.EPOCH, steps.SAVE, steps.STEP, steps.STEP, steps.STEP, steps.AFTER_BATCHES),
        *(steps.SAVE, steps.EPOCH, steps.CLOSING),
    ] == [phase for phase, _ in seen.ended]


@pytest.mark.parametrize("text", [None, "{", '{"steps": "/proc/1/fd/5", "stacks": "", "owner": {"pid": 1}}'])
def test_a_run_goes_on_without_a_supervisor_that_it_can_reach(tmp_path, monkeypatch, text):
    """It is gone, on another machine, or of an older version."""
    monkeypatch.setenv(job_leader.SUPERVISOR, str(tmp_path))
    if text is not None:
        (tmp_path / alive.ANNOUNCED).write_text(text)
    toy = Toy()
    with new_run(tmp_path / "run", toy) as run:
        for step in run.steps(3):
            toy.learn(step)
    assert 3 == run.step


# Stacks and ranks ----------------------------------------------------------------------------------------------

LISTENS = """
import faulthandler, os, signal, sys, time
from pathlib import Path
from holdfast.children.steps import StepSlot
from holdfast import disk
if "claims" in sys.argv:
    slot = StepSlot(Path(sys.argv[1]), 0, 1)
if "listens" in sys.argv:
    faulthandler.register(int(sys.argv[3]), disk.open_shared(Path(sys.argv[2]), append=True))
if "uses" in sys.argv:
    signal.signal(int(sys.argv[3]) - 1, lambda *_: os._exit(3))
if "forks" in sys.argv and os.fork():
    os.wait()
def asleep():
    print("ready", flush=True)
    time.sleep(600)
asleep()
"""


@pytest.mark.parametrize("words", [[], ["claims"], ["listens"], ["claims", "listens"]], ids=" ".join)
def test_the_signal_goes_only_to_runs_that_catch_it(tmp_path, words):
    """Any other process would die of it, or take it for something else."""
    (tmp_path / "script.py").write_text(LISTENS)
    memory, stacks, number = StepMemory(), StackMemory(), signal.SIGRTMAX - 6
    command = [sys.executable, tmp_path / "script.py", memory.path, stacks.path, str(number), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert b"ready\n" == process.stdout.readline()
            text = stacks.collect_stacks([process.pid], {process.pid: number})[process.pid]
            assert process.poll() is None
        finally:
            process.kill()
    assert (words == ["claims", "listens"]) == ("in asleep" in text)
    assert f"thread {process.pid}" in text
    if "in asleep" in text:
        last = LISTENS.splitlines().index("    time.sleep(600)") + 1
        assert innermost_user_line(text) in {
            f"script.py, line {last - 1}",
            f"script.py, line {last}",
        }  # it may still be in the print


@pytest.mark.parametrize("forks", [[], ["forks"]], ids=" ".join)
def test_a_signal_that_another_rank_listens_to_is_this_ones_own(tmp_path, forks):
    """It may have a handler of the user's there; a fork of it listens to the signal of its parent."""
    (tmp_path / "script.py").write_text(LISTENS)
    memory, stacks, number = StepMemory(), StackMemory(), signal.SIGRTMAX - 6
    words = [memory.path, stacks.path, str(number), "claims", "listens", "uses", *forks]
    with subprocess.Popen([sys.executable, tmp_path / "script.py", *words], stdout=subprocess.PIPE) as process:
        try:
            assert b"ready\n" == process.stdout.readline()
            pids = [process.pid, *processes.descendants(process.pid)]
            texts = stacks.collect_stacks(pids, {os.getpid(): number - 1, process.pid: number})
            assert process.poll() is None
            assert 1 + len(forks) == len(pids)
            assert "in asleep" in texts[pids[-1]]
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGKILL)


def seen(rank, step, world=2, phase=steps.STEP, pid=None):
    return SlotView(rank, pid or 100 + rank, rank, world, 0, False, step, 9, phase, [])


WAITS = 'Thread 0x1 (most recent call first):\n  File "/x/torch/distributed/distributed_c10d.py", line 1 in all_reduce'
ASLEEP = 'Thread 0x1 (most recent call first):\n  File "/home/me/train.py", line 7 in load'


@pytest.mark.parametrize(
    ("ranks", "stacks", "missed"),
    [
        ([seen(0, 5, world=1)], {}, []),
        ([seen(0, 6), seen(1, 5)], {}, [1]),
        ([seen(0, 5), seen(1, 5)], {}, []),
        ([seen(0, 5), seen(1, 5)], {100: WAITS, 101: ASLEEP}, [1]),
        ([seen(0, 5), seen(1, 5)], {100: WAITS, 101: WAITS}, []),
        ([seen(0, 5), seen(1, 4, phase=steps.OVER)], {100: WAITS}, []),
        ([seen(0, 5), seen(1, 5)], {100: WAITS, 101: "train.py\nstate: T"}, [1]),
        ([seen(0, 5), seen(1, 5)], {100: WAITS, 101: "no stack"}, []),
        ([seen(0, 5), seen(1, 5)], {100: f"uses a GPU\n{ASLEEP}", 101: f"uses a GPU\n{ASLEEP}"}, []),
        ([seen(1, 5)], {101: ASLEEP}, [1]),  # the other one is on another node
        ([seen(0, 5)], {100: WAITS}, []),
        ([seen(0, 7, 3), seen(1, 6, 3), seen(2, 5, 3)], {}, [2, 1]),
    ],
)
def test_the_missing_rank_is_the_one_behind_or_the_one_in_no_collective(ranks, stacks, missed):
    assert missed == [each.rank for each in missing.missing_ranks(ranks, stacks)]


def test_what_is_said_of_the_ranks():
    both = [seen(0, 5), seen(1, 5)]
    assert "of 2 ranks, the others wait for 1 (pid 101, after step 5)" == missing.describe_missing(both[1:], both)
    assert "all 2 ranks wait" == missing.describe_missing([], both)
    half = [seen(rank, 5, world=8) for rank in range(4)]
    assert "of 8 ranks, all that this node has wait: 0 to 3" == missing.describe_missing([], half)
    assert "of 8 ranks, all that this node has wait: 0, 2" == missing.describe_missing([], half[::2])


def test_the_second_hang_at_the_same_step_is_the_last():
    """One is started again, and so is one at another step. A requeue would only hang again."""
    hung = CommandAttempt("failed", -9, 60.0, hung="step 17")
    saved = CommandAttempt("stopped", 75, 60.0, reason="SIGTERM", progressed=True, hung="step 17")
    later = saved._replace(hung="step 90")
    assert ["again", "fail"] == [decide_next_step(each).do for each in ([hung], [hung, hung])]
    assert ["again", "again", "fail"] == [
        decide_next_step(each).do for each in ([saved], [saved, later], [saved, later, hung])
    ]
    assert "it hung twice at step 17" == decide_next_step([hung, hung]).why
    assert ("leave", "leave") == (
        decide_next_step([hung._replace(told="SIGTERM")]).do,
        decide_next_step([hung._replace(held=True)]).do,
    )
    assert "done" == decide_next_step([hung._replace(verdict="done", code=0)]).do


def test_where_it_is_has_the_users_own_line():
    text = f'{ASLEEP}\n\nCurrent thread 0x2 (most recent call first):\n  File "{Path(os.__file__)}", line 3 in wait\n'
    assert "" == innermost_user_line(text)
    assert "loop.py, line 12" == innermost_user_line(f'{text}  File "/home/me/loop.py", line 12 in step\n')
