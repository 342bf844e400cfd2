"""Hangs of real processes under `holdfast run`: found, named, kept with their stacks, and ended if that is wanted."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from supervised import Supervised, bash, python, supervised, train, until
from toy import names

AFTER_S = 3
LONG_S = 2.5 * AFTER_S  # the supervisor tells of a hang in the meantime
HANG = ("--hang-after", AFTER_S)
RESTART = (*HANG, "--on-hang", "restart", "--grace", 3)
KILLED = (*HANG, "--on-hang", "restart", "--grace", 1)  # what hangs so that it cannot save
TRAINS = """
    import subprocess, threading
    lock = threading.Lock()

    def deadlock():
        lock.acquire()
        lock.acquire()

    def own_pipe():
        child = subprocess.Popen([sys.executable, "-c", "print(10 * 2**20 * 'x')"], stdout=subprocess.PIPE)
        child.wait()

    def one_hangs():
        if "again" in sys.argv or not os.path.exists("hung"):
            open("hung", "w").close()
            globals()[sys.argv[1]]()

    with new_run(RUN, toy, every=Every(steps=5), keep=Last(3)) as run:
        for step in run.steps(30):
            toy.learn(step)
            time.sleep(0.02)
            if step == 17 and len(sys.argv) > 1:
                one_hangs()
    print("value", toy.value, flush=True)
"""


LIVES = "for i in $(seq 60); do echo $i; touch alive; sleep 0.1; done"
SLEEPS = TRAINS.replace("lock.acquire()\n        lock.acquire()", f"time.sleep({LONG_S})")
STALLS = f"""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Stalls(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            if index == 30:
                time.sleep({LONG_S})
            return torch.zeros(1)

    with new_run(RUN, toy) as run:
        for epoch in run.epochs(1):
            for x in run.batches(DataLoader(Stalls(), batch_size=2, num_workers=2)):
                time.sleep(0.05)
"""
EVALUATES = f"""
    with new_run(RUN, toy, every=Every(steps=5)) as run:
        for epoch in run.epochs(2):
            for x in run.batches(range(5)):
                toy.learn(x)
            time.sleep({2 * AFTER_S})
"""
BOTH, NOWHERE = "a file for both", os.devnull
WAITING = {  # which mostly wait: name: script or command, arguments, options, output and errors
    "twice": (TRAINS, ("deadlock", "again"), KILLED, None),
    "once": (SLEEPS, ("deadlock",), HANG, None),
    "worker": (STALLS, (), HANG, None),
    "evaluation": (EVALUATES, (), HANG, None),
    "output": (bash(f"{LIVES}; sleep 600"), (), RESTART, None),
    "file": (bash(f"{LIVES}; sleep 600"), (), (*RESTART, "--alive", "alive"), None),
    "both": (bash(f"{LIVES}; sleep {LONG_S}; echo over; sleep 1"), (), HANG, BOTH),
    "unseen": (bash(f"{LIVES}; sleep {LONG_S}"), (), RESTART, NOWHERE),
    "late": (bash(f"sleep {2 * AFTER_S}; {LIVES}"), (), RESTART, None),
}


def tell(place, name):
    """One of the stories, to its end."""
    body, words, options, output = WAITING[name]
    command = [*train(place, body), *words] if isinstance(body, str) else body
    if output is None:
        return supervised(place, command, *options)
    with (place / output).open("ab") as both:  # an absolute path stays as it is
        return supervised(place, command, *options, out=both, err=both)


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """{story: its end to be waited for}: all are told at once."""
    with ThreadPoolExecutor(len(WAITING)) as pool:
        yield {name: pool.submit(tell, tmp_path_factory.mktemp(name), name) for name in WAITING}


def value(place, body=TRAINS):
    """What the run ends with that nothing disturbs."""
    place.mkdir()
    return supervised(place, train(place, body)).printed


def kept(it):
    """The stacks of the one hang that was told."""
    (hang,) = it.events("hang")
    return hang, (it.home / "hang-1.txt").read_text()


def test_a_deadlock_is_found_named_and_started_again(tmp_path):
    """From the last save, to the bits of a run that did not hang. The command could not save, and was killed."""
    it = supervised(tmp_path, [*train(tmp_path, TRAINS), "deadlock"], *KILLED)
    hang, stacks = kept(it)
    assert (0, 17, "a step") == (it.code, hang["step"], hang["during"]), it.said
    assert re.search(
        r"no sign of life for [\d.]+ s in a step, after step 17; it is at train.py, line \d+; stacks: ", it.said
    )
    assert "in deadlock" in stacks
    assert AFTER_S < hang["stuck_s"] < 10 * AFTER_S
    exits = [(event["code"], event["hung"]) for event in it.events("exit")]
    assert [(-signal.SIGKILL, "step 17"), (0, "")] == exits
    assert value(tmp_path / "whole") == it.printed
    assert "done at step 30 after 2 starts (1 hang)" in it.said


def test_the_second_hang_at_the_same_step_gives_the_allocation_back(ends):
    """With 8, and not with 75, upon which a job would be requeued."""
    it = ends["twice"].result()
    assert (8, 2) == (it.code, len(it.events("start")))
    assert "train.py: killed by SIGKILL: it hung twice at step 17" in it.said
    assert ["hang-1.txt", "hang-2.txt"] == sorted(path.name for path in it.home.glob("hang-*"))


def test_a_hang_is_told_once_and_the_run_goes_on(ends):
    """Nothing is ended by itself; a run that goes on by itself is told, too."""
    it = ends["once"].result()
    assert (0, 1, 1) == (it.code, len(it.events("start")), it.said.count("no sign of life"))
    assert ["hang", "hang_over"] == [kind for kind in it.story() if kind.startswith("hang")]
    assert re.search(r"it goes on after [\d.]+ s", it.said)


def test_a_command_that_was_stopped_alone_is_named_and_saves_before_it_is_started_again(tmp_path):
    """A signal from elsewhere has stopped it: it is let go on, to save."""
    body = TRAINS.replace("run.steps(30)", "run.steps(100)")
    with Supervised(tmp_path, train(tmp_path, body), *RESTART) as it:
        until(lambda: names(tmp_path / "run"), "a save")
        it.strike(signal.SIGSTOP)
        pid = it.events("start")[0]["pid"]
        assert 0 == it.end(), it.said
    hang, stacks = kept(it)
    assert f"process {pid} was stopped by a signal (kill -CONT {pid})" == hang["cause"]
    assert "state: T" in stacks
    assert [75, 0] == [event["code"] for event in it.events("exit")]
    assert value(tmp_path / "whole", body) == it.printed


def test_a_child_whose_pipe_nobody_reads_is_named(tmp_path):
    """`subprocess.Popen(..., stdout=PIPE).wait()`: the child waits for a reader, and its parent for it."""
    it = supervised(tmp_path, [*train(tmp_path, TRAINS), "own_pipe"], *RESTART)
    hang, stacks = kept(it)
    assert 0 == it.code, it.said
    assert "in own_pipe" in stacks
    if "pipe_write" in stacks:  # not every kernel shows where a process waits
        assert "waits to write into a pipe that nobody reads" in hang["cause"]


@pytest.mark.parametrize("errors", [False, True], ids=["output alone", "errors too"])
def test_an_output_that_nobody_reads_is_named_and_dropped(tmp_path, errors):
    """The command saves as soon as it can write. Nothing holds the next start, nor the supervisor's own lines."""
    body = TRAINS.replace("time.sleep(0.02)", "print(2**14 * 'x', flush=True)")
    source, sink = os.pipe()
    with Supervised(tmp_path, train(tmp_path, body), *RESTART, out=sink, err=sink if errors else None) as it:
        os.close(sink)
        code = it.end()
    hang, _ = kept(it)
    os.close(source)
    assert 0 == code, it.said
    assert "its output is full: nobody reads what `holdfast run` prints" == hang["cause"]
    assert errors or "what the command prints from now on is dropped: nobody reads it" in it.said
    assert 1 == len(it.events("dropped"))
    assert [75, 0] == [event["code"] for event in it.events("exit")]


def test_the_stacks_have_the_worker_for_which_the_loop_waits(ends):
    """A forked worker of a loader writes its own. That it got the signal is no end of it: the run goes on."""
    it = ends["worker"].result()
    _, stacks = kept(it)
    assert (0, 1) == (it.code, len(it.events("hang_over"))), it.said
    assert "in __getitem__" in stacks
    assert 2 == stacks.count("in _worker_loop")


def test_a_stuck_collective_names_the_rank_for_which_the_others_wait(tmp_path):
    """Both are at the same step; one of them is in the collective, and the other one asleep."""
    (tmp_path / "train.py").write_text(RANKS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    it = supervised(tmp_path, launch, *KILLED, OMP_NUM_THREADS="1")
    hang, stacks = kept(it)
    assert (0, [1], 5) == (it.code, hang["missing"], hang["step"]), it.said
    assert "of 2 ranks, the others wait for 1 (pid" in it.said
    assert "in falls_asleep" in stacks
    assert "in all_reduce" in stacks
    assert re.fullmatch(r"train.py, line \d+", hang["where"])


def test_the_supervisor_of_each_node_tells_of_its_own_ranks(tmp_path):
    """One supervisor and one rank on each of two nodes, as `srun holdfast run` has them: here, two directories."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    script = RANKS.replace('"run"', repr(str(tmp_path / "run"))).replace("sleep(600)", f"sleep({LONG_S})")
    nodes = []
    with ExitStack() as around:
        for rank in range(2):
            place = tmp_path / f"node-{rank}"
            place.mkdir()
            (place / "train.py").write_text(script)
            node = Supervised(place, [sys.executable, "train.py"], *HANG, RANK=str(rank), **meeting)
            nodes.append(around.enter_context(node))
        assert [0, 0] == [node.end() for node in nodes], [node.said for node in nodes]
    waits, missed = (kept(node)[0] for node in nodes)
    assert (None, [1]) == (waits.get("missing"), missed["missing"])
    assert "of 2 ranks, all that this node has wait: 0" in nodes[0].said
    assert "of 2 ranks, the others wait for 1 (pid" in nodes[1].said


def test_ranks_that_all_wait_are_told_of_once(tmp_path):
    """Each has a clock of its own."""
    (tmp_path / "train.py").write_text(RANKS.replace("time.sleep(600)", f"time.sleep({LONG_S})"))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    it = supervised(tmp_path, launch, *HANG, OMP_NUM_THREADS="1")
    assert (0, 1, 1) == (it.code, len(it.events("hang")), len(it.events("hang_over"))), it.said


RANKS = """
import os, time, torch
import torch.distributed as dist
from holdfast import Every, Run

def falls_asleep():
    if dist.get_rank() == 1 and not os.path.exists("hung"):
        open("hung", "w").close()
        time.sleep(600)

dist.init_process_group("gloo")
model = torch.nn.Linear(2, 2)
with Run("run", dict(model=model), every=Every(steps=2)) as run:
    for step in run.steps(10):
        time.sleep(0.05)
        if step == 5:
            falls_asleep()
        dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


def test_the_example_ends_as_if_it_had_not_hung(tmp_path):
    """What its first lines promise."""
    example = Path(__file__).parents[2] / "examples" / "hang" / "train.py"
    hung, whole = tmp_path / "hung", tmp_path / "whole"
    hung.mkdir()
    whole.mkdir()
    it = supervised(hung, [sys.executable, example], *RESTART)
    _, stacks = kept(it)
    assert 0 == it.code, it.said
    assert re.search(r"it is at train.py, line \d+", it.said)
    assert "in writes_logs" in stacks
    assert "in cleans_the_cache" in stacks
    assert supervised(whole, [sys.executable, example, "--without"], *RESTART).printed == it.printed


# Any other command ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["output", "file"])
def test_another_command_is_judged_by_its_output_or_by_a_file(ends, name):
    """The second hang has no step; it is the last, too."""
    it = ends[name].result()
    assert (8, 2) == (it.code, len(it.events("start"))), it.said
    what = "the file that it touches" if name == "file" else "its output"
    assert f"{what} does not change" in it.said
    assert "sleep 600" in (it.home / "hang-1.txt").read_text()


def test_what_the_supervisor_says_is_no_sign_of_life(ends):
    """Both write into the same file."""
    it = ends["both"].result()
    said = (it.place / BOTH).read_text()
    assert (0, 1, 1) == (it.code, said.count("no sign of life"), said.count("it goes on")), said


@pytest.mark.parametrize("name", ["unseen", "late"])
def test_a_command_whose_output_cannot_be_seen_does_not_hang(ends, name):
    """Nor does one that takes its time before its first words, and then speaks."""
    it = ends[name].result()
    assert (0, []) == (it.code, it.events("hang"))


# What is no hang -----------------------------------------------------------------------------------------------


def test_ctrl_z_is_no_hang(tmp_path):
    """It stops the supervisor together with its command, in the middle of a step that the supervisor has seen."""
    body = TRAINS.replace("time.sleep(0.02)", "print(step, flush=True); time.sleep(1)").replace("(30)", "(5)")
    with Supervised(tmp_path, train(tmp_path, body), *RESTART) as it:
        until(lambda: "3\n" in it.printed, "a step")
        seen = time.monotonic() + 0.4
        until(lambda: time.monotonic() > seen)
        it.send("TSTP")
        goes_on = time.monotonic() + 2 * AFTER_S
        until(lambda: time.monotonic() > goes_on)
        it.send("CONT")
        assert 0 == it.end(), it.said
    assert [] == it.events("hang")


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_command_that_a_debugger_holds_does_not_hang(tmp_path):
    with Supervised(tmp_path, [*train(tmp_path, SLEEPS), "deadlock"], *HANG) as it:
        until(lambda: it.begun, "the start")
        pid = it.events("start")[0]["pid"]
        with subprocess.Popen(["strace", "-o", os.devnull, "-p", str(pid)]) as tracer:
            assert 0 == it.end(), it.said
            tracer.wait()
    assert [] == it.events("hang")


def test_what_follows_the_batches_of_an_epoch_has_a_limit_of_its_own(ends):
    """An evaluation takes longer than a step."""
    it = ends["evaluation"].result()
    assert (0, []) == (it.code, it.events("hang")), it.said


def test_a_file_in_no_directory_is_refused_at_once(tmp_path):
    it = supervised(tmp_path, python("print('begun')"), "--alive", "nowhere/alive")
    assert (2, "") == (it.code, it.printed)
    assert "there is no directory" in it.said


def test_a_script_that_blocks_all_signals_trains_all_the_same(tmp_path):
    """None is left upon which it could write its stacks."""
    blocks = "    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGTERM})\n"
    it = supervised(tmp_path, train(tmp_path, blocks + TRAINS))
    assert 0 == it.code, it.said
