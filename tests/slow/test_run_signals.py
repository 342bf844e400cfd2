"""Signals, exit codes and neighbours: asked of real processes."""

import os
import pty
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from needed import needs
from stores import invoke
from toy import ENDS_S, Ended, events, launch, names, script, start, waited_for

SENDING = """
    when, name = int(sys.argv[1]), sys.argv[2]
    with new_run(RUN, toy, every=None) as run:
        for epoch in run.epochs(2):
            for batch in run.batches([1, 2, 3]):
                toy.learn(batch)
                if run.step == when:
                    send(name)
                run.log(value=toy.value % 1000)
        print(toy.value)
"""


def test_a_signal_saves_at_the_next_safe_point_and_exits_with_75(tmp_path):
    """The journal's last line says the same; run again, the end is the uninterrupted one."""
    places = {name: tmp_path / name for name in ("whole", "TERM", "USR1", "USR2", "INT")}
    for place in places.values():
        place.mkdir()
    expected = launch(script(places.pop("whole"), SENDING), -1, "TERM")
    assert 0 == expected.code, expected
    for name, place in places.items():
        train = script(place, SENDING)
        stopped = launch(train, 4, name)
        assert (75, "") == (stopped.code, stopped.out), stopped
        assert f"stopped by SIG{name} at step 5; saved, run me again" in stopped.err
        assert "Traceback" not in stopped.err
        assert ["step-000000005"] == names(place / "run")
        assert [("SIG" + name, 5)] == [(each["reason"], each["step"]) for each in events(place / "run", "stop")]
        again = launch(train, -1, name)
        assert (0, expected.out) == (again.code, again.out), again


def test_a_second_interrupt_leaves_at_once(tmp_path):
    """The first one asks, the second one insists; nothing is saved from the middle of a step. Of two within a second
    the third does: `timeout -s INT` sends each to its child and to the group.
    """
    train = script(
        tmp_path,
        """
        with new_run(RUN, toy, every=None) as run:
            for step in run.steps(3):
                send("INT")
                send("INT")
                print("asked", flush=True)
                send("INT")
                print("never")
        """,
    )
    ended = launch(train)
    assert "asked\n" == ended.out
    assert -signal.SIGINT == ended.code or "KeyboardInterrupt" in ended.err
    assert [] == names(tmp_path / "run")


def test_ctrl_c_is_answered_at_once(tmp_path):
    """It says which step is finished, how long that takes, and what a second one costs, before the step is over."""
    train = script(
        tmp_path,
        """
        import time
        with new_run(RUN, toy, every=None) as run:
            for step in run.steps(4):
                if step == 1:
                    run.save()
                time.sleep(2.2 if step < 3 else 0)
                if step == 3:
                    send("INT")
                    print("after the signal", file=sys.stderr, flush=True)
        """,
    )
    ended = launch(train)
    told = "holdfast: SIGINT: finishing step 4 (about 2 s), then saving. Ctrl-C again: stop now and lose "
    assert 75 == ended.code, ended
    assert [told + "1 step and this one", "after the signal"] == ended.err.splitlines()[2:4]


def test_a_branch_does_not_call_its_sources_steps_lost(tmp_path):
    """They are in the source's checkpoint: only steps of this process can be lost."""
    train = script(
        tmp_path,
        """
        from pathlib import Path
        with new_run(RUN, toy, every=None) as run:
            [*run.steps(30)]
        with new_run(Path(RUN).with_name("branch"), Toy(), every=None, branch_from=RUN) as run:
            for step in run.steps(40):
                if step == 32:
                    send("INT")
        """,
    )
    ended = launch(train)
    assert 75 == ended.code, ended
    assert "finishing step 33, then saving. Ctrl-C again: stop now and lose 2 steps and this one" in ended.err


def test_timeout_that_signals_child_and_group_costs_no_save(tmp_path):
    """It ends with what `timeout` says of a program that it stopped, and everything is saved."""
    train = script(
        tmp_path,
        """
        import time
        with new_run(RUN, toy, every=None) as run:
            for step in run.steps(1000):
                toy.learn(step)
                print(step, flush=True)
                time.sleep(0.1)
        """,
    )
    command = ["timeout", "-s", "INT", "4", sys.executable, str(train)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 124 == ended.returncode
    assert [f"step-{len(ended.stdout.split()):09d}"] == names(tmp_path / "run")
    assert ["SIGINT"] == [each["reason"] for each in events(tmp_path / "run", "stop")]


def test_timeout_that_signals_during_a_restore_costs_nothing(tmp_path):
    """The two signals are one request, heard before the first loop: the run leaves by itself, the next one goes on."""
    body = """
        reads, writes = os.pipe()
        os.set_blocking(writes, False)

        class Slow(Toy):
            def load_state_dict(self, state):
                super().load_state_dict(state)
                print("restoring", flush=True)
                if sys.argv[1] == "slow":
                    os.read(reads, 1)  # a signal has come
                    time.sleep(0.5)    # and the one to the group

        signal.set_wakeup_fd(writes)
        toy = Slow()
        with new_run(RUN, toy, every=None) as run:
            for step in run.steps(5):
                toy.learn(step)
                if sys.argv[1] == "first" and step == 2:
                    send("INT")
        print(toy.value)
    """
    train = script(tmp_path, body)
    assert 75 == launch(train, "first").code
    saved = names(tmp_path / "run")
    command = ["timeout", "-s", "INT", "6", sys.executable, str(train), "slow"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (124, "restoring\n") == (ended.returncode, ended.stdout), ended
    assert "Traceback" not in ended.stderr, ended
    assert ["SIGINT"] * 2 == [each["reason"] for each in events(tmp_path / "run", "stop")]
    assert saved == names(tmp_path / "run")[:1]
    rest = launch(train, "rest")
    whole = tmp_path / "whole"
    whole.mkdir()
    expected = launch(script(whole, body), "whole")
    assert (0, expected.out.splitlines()[-1]) == (rest.code, rest.out.splitlines()[-1])


ON_A_TERMINAL = """
    import time
    with new_run(RUN, toy, every=None) as run:
        for step in run.steps(1000):
            toy.learn(step)
            print("step", step, flush=True)
            time.sleep(0.05)
            print("late", step, file=sys.stderr, flush=True)
"""
IN_A_SAVE = """
    import time
    class Slow(Toy):
        def state_dict(self):
            print("in a save", flush=True)
            time.sleep(0.5)
            return super().state_dict()
    with new_run(RUN, Slow(), every=Every(steps=4), background={background}) as run:
        os.fsync = lambda _: print("writes", flush=True) or time.sleep(0.2)
        for step in run.steps(1000):
            time.sleep(0.05)
            print("late", step, file=sys.stderr, flush=True)
"""
WITH_WORKERS = """
    import time, torch
    from torch.utils.data import DataLoader
    loader = DataLoader(torch.arange(4000.0), batch_size=2, num_workers=2)
    with new_run(RUN, toy, every=None) as run:
        for epoch in run.epochs(2):
            for x in run.batches(loader):
                toy.learn(x.sum().item())
                print("step", run.step, flush=True)
                time.sleep(0.05)
"""
CASES = {  # the script, what it prints when its terminal is closed, and what starts it
    "in a step": (ON_A_TERMINAL, "step 3", []),
    "in a capture": (IN_A_SAVE.format(background=True), "in a save", []),
    "in a write": (IN_A_SAVE.format(background=True), "writes", []),
    "in a save without a copy": (IN_A_SAVE.format(background=False), "writes", []),
    "with two workers": (WITH_WORKERS, "step 3", []),
    "holdfast run": (ON_A_TERMINAL, "step 3", ["-m", "holdfast", "run", "--", sys.executable]),
}


def hung_up(place, command, when):
    """The exit code of a program whose terminal is closed once it has printed that."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(place)
        os.execvp(command[0], command)
    text = b""
    while when not in text.decode():
        text += os.read(terminal, 4096)  # EIO: it has ended, and said
    os.close(terminal)
    ended = []
    waited_for(lambda: ended.append(os.waitpid(child, os.WNOHANG)) or ended[-1][0], ENDS_S)
    return os.waitstatus_to_exitcode(ended[-1][1])


def saved_at_a_hangup(run, reason="SIGHUP"):
    """Whether it stopped for that, and its newest checkpoint is that of the stop."""
    [stop] = events(run, "stop")
    return (reason, f"step-{stop['step']:09d}") == (stop["reason"], names(run)[-1])


@pytest.mark.parametrize("case", CASES)
def test_a_closed_terminal_stops_a_run_as_sigterm_does(tmp_path, case):
    """What it writes afterwards is dropped, and costs no save; it is resumable, and nothing is left running."""
    body, when, starter = CASES[case]
    train = script(tmp_path, body)
    assert 75 == hung_up(tmp_path, [sys.executable, *starter, str(train)], when)
    assert saved_at_a_hangup(tmp_path / "run", "SIGTERM" if starter else "SIGHUP")  # a supervisor hands SIGTERM on
    assert 0 == invoke("verify", tmp_path / "run").exit_code
    assert [] == running(train)


def running(train):
    """Processes that have the script on their command line."""
    asked = (path.joinpath("cmdline") for path in Path("/proc").glob("[0-9]*"))
    found = []
    for path in asked:
        with suppress(OSError):
            found += [path.parent.name] if str(train).encode() in path.read_bytes() else []
    return found


def test_under_nohup_a_closed_terminal_stops_nothing(tmp_path):
    """As nohup wants."""
    train = script(tmp_path, ON_A_TERMINAL)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execvp("nohup", ["nohup", sys.executable, str(train)])
    out = tmp_path / "nohup.out"
    waited_for(lambda: out.exists() and "step 3" in out.read_text())
    os.close(terminal)
    seen = len(out.read_text())
    waited_for(lambda: "step" in out.read_text()[seen:])
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert 75 == os.waitstatus_to_exitcode(status)
    assert ["SIGTERM"] == [stop["reason"] for stop in events(tmp_path / "run", "stop")]


@needs("tmux")
def test_a_killed_session_of_tmux_is_a_closed_terminal(tmp_path):
    """Also of a script's shell that the window's own shell started: the terminal is dead before SIGHUP comes."""
    train, code = script(tmp_path, ON_A_TERMINAL), tmp_path / "code"
    tmux = ["tmux", "-S", str(tmp_path / "socket"), "-f", "/dev/null"]
    (tmp_path / "job.sh").write_text(f"trap : HUP\n{shlex.join([sys.executable, str(train)])}\necho $? >{code}\n")
    subprocess.run([*tmux, "new-session", "-d", "bash --norc -i"], check=True, cwd=tmp_path)
    try:
        subprocess.run([*tmux, "send-keys", f"bash {tmp_path / 'job.sh'}", "Enter"], check=True)
        seen = [*tmux, "capture-pane", "-p"]
        waited_for(lambda: b"step 3" in subprocess.run(seen, check=True, capture_output=True).stdout)
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    waited_for(lambda: code.exists() and code.read_text())
    assert "75\n" == code.read_text()
    assert saved_at_a_hangup(tmp_path / "run")


def test_output_to_a_terminal_that_is_gone_is_dropped_where_nobody_is_told(tmp_path):
    """A session leader that goes on hears SIGHUP alone: the run writes into nothing, and ends as if undisturbed."""
    body = ON_A_TERMINAL.replace("1000", "40")
    train, code = script(tmp_path, body), tmp_path / "code"
    line = f"trap : HUP; {shlex.join([sys.executable, str(train)])}; echo $? >{code}"
    hung_up(tmp_path, ["bash", "-c", line], "step 3")
    assert "0\n" == code.read_text()
    assert ["step-000000040"] == names(tmp_path / "run")[-1:]


def test_torchrun_hands_a_closed_terminal_on_to_its_ranks(tmp_path):
    """Both ranks save one checkpoint; torchrun itself ends with 1, as of any failure, and the next launch goes on."""
    began = "    import torch.distributed as dist\n    dist.init_process_group('gloo')\n"
    train = script(
        tmp_path, began + ON_A_TERMINAL.strip("\n").replace("run.steps(1000)", "run.steps(int(sys.argv[1]))")
    )
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(train)]
    assert 1 == hung_up(tmp_path, [sys.executable, *words, "1000"], "step 3")
    assert saved_at_a_hangup(tmp_path / "run")
    [stop] = events(tmp_path / "run", "stop")
    again = subprocess.run([sys.executable, *words, str(stop["step"] + 2)], capture_output=True, text=True, check=False)
    assert 0 == again.returncode, again
    assert f"resumes at step {stop['step']}" in again.stderr
    assert [] == running(train)


def test_a_scripts_own_handler_of_sighup_is_kept(tmp_path):
    """It is a widespread request to read a configuration again."""
    train = script(
        tmp_path,
        """
        import signal
        signal.signal(signal.SIGHUP, lambda *_: print("mine", flush=True))
        with new_run(RUN, toy, every=None) as run:
            for step in run.steps(2):
                send("HUP")
        """,
    )
    ended = launch(train)
    assert (0, "mine\nmine\n") == (ended.code, ended.out)


def test_a_mistake_ends_at_the_callers_own_line(tmp_path):
    """One frame of ours, and all of them on request."""
    train = script(
        tmp_path,
        """
        with Run(RUN, {"toy": toy}, overrides={"toy": {"lr": 1}}) as run:
            pass
        """,
    )
    brief, full = launch(train), launch(train, HOLDFAST_TRACEBACK="full")
    assert 2 == brief.err.count('  File "') < full.err.count('  File "')
    assert "with Run(RUN" in brief.err
    assert brief.err.splitlines()[-1].startswith("holdfast.errors.UsageError: overrides: 'toy'")


def test_a_signal_as_the_block_ends_exits_with_75(tmp_path):
    """All is done and saved; the next start finds a finished run and ends well."""
    train = script(
        tmp_path,
        """
        with new_run(RUN, toy, every=None) as run:
            for step in run.steps(2):
                toy.learn(step)
            if len(sys.argv) > 1:
                send("TERM")
        print("after")
        """,
    )
    stopped, again = launch(train, "now"), launch(train)
    assert (75, "") == (stopped.code, stopped.out)
    assert (0, "after\n") == (again.code, again.out)
    assert ["step-000000002"] == names(tmp_path / "run")


def test_the_same_directory_in_two_living_processes_is_refused_by_name(tmp_path):
    """The second one says who owns it; when the first is dead, nobody asks any more."""
    train = script(
        tmp_path,
        """
        with new_run(RUN, toy) as run:
            for step in run.steps(1000):
                print(step, flush=True)
                time.sleep(0.05)
                if len(sys.argv) > 1:
                    break
        """,
    )
    first = start(train)
    assert "0\n" == first.stdout.readline()
    refused = launch(train)
    assert refused.code not in (0, 75), refused
    assert f"may still be running: pid {first.pid} on " in refused.err
    assert "say take_over=True or set HOLDFAST_TAKE_OVER=1" in refused.err
    first.kill()
    Ended(first)
    assert 0 == launch(train, "break").code


SLOW = """
    with new_run(RUN, toy, every=None) as run:
        for epoch in run.epochs(2):
            for batch in run.batches([1, 2, 3]):
                time.sleep(0.25)
                run.log(loss=0.125)
    print("done")
"""


def on_a_terminal(train, **environment):
    """What a process writes whose stdout and stderr are a terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(train)],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**{name: value for name, value in os.environ.items() if name != "CI"}, "TERM": "xterm", **environment},
    )
    os.close(follower)
    written = b""
    while True:
        try:
            piece = os.read(leader, 1 << 16)
        except OSError:  # Linux says EIO when the last writer has gone
            break
        if not piece:
            break
        written += piece
    os.close(leader)
    assert 0 == process.wait(timeout=ENDS_S), written
    return written.decode()


def test_a_terminal_shows_progress(tmp_path):
    """Epoch, step and the last metrics; wiped at the end."""
    written = on_a_terminal(script(tmp_path, SLOW))
    assert "epoch 1/2" in written
    assert "1/3" in written
    assert "loss 0.125" in written
    assert written.rstrip().endswith("done")


def test_without_a_terminal_there_are_two_lines_and_no_more(tmp_path):
    """Where it begins and how it ends; a log file fills with nothing else."""
    ended = launch(script(tmp_path, SLOW.replace("0.25", "0.01")))
    said = [
        f"holdfast: {tmp_path / 'run'}: {line}\n"
        for line in ("starts fresh (attempt 1)", "finished: 6 steps in 1 attempt")
    ]
    assert ("".join(said), "done\n") == (ended.err, ended.out)


STRUCK = """
    from holdfast import disk
    from holdfast.store import pruning

    def struck(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    kept, asked = int(sys.argv[1]), sys.argv[2]
    with new_run(RUN, toy, every=Every(steps=1) if asked == "due" else None, keep=Last(kept)) as run:
        for step in run.steps(9):
            toy.learn(step)
            if asked == "asked" and step < 2:
                run.save()
            if step == 2:
                run.wait()
                pruning.read_back = pruning.discard = struck
                if asked == "asked":
                    run.save()
                send("TERM")
"""


@pytest.mark.parametrize("asked", ["due", "asked", "never"])
def test_nothing_is_read_back_or_removed_between_a_stops_save_and_its_last_line(tmp_path, asked):
    """A SIGKILL awaits whoever would: the good-bye is there, 75 as well. The next start removes what this one left."""
    train = script(tmp_path, STRUCK)
    if asked == "never":
        assert 75 == launch(script(tmp_path, STRUCK.replace("step == 2", "step == 1")), 1, "never").code
        train = script(tmp_path, STRUCK)
    stopped = launch(train, 1, asked)
    assert 75 == stopped.code, stopped
    assert "SIGTERM" == events(tmp_path / "run", "stop")[-1]["reason"]
    assert "step-000000003" == names(tmp_path / "run")[-1]
    assert 2 == len(names(tmp_path / "run"))
    again = launch(
        script(tmp_path, STRUCK.replace('send("TERM")', "pass").replace("= struck", "= pruning.discard")), 1, "never"
    )
    assert 0 == again.code, again
    assert ["step-000000009"] == names(tmp_path / "run")


def test_stops_alone_do_not_fill_a_disk(tmp_path):
    """Attempts that save nothing but their stop: what is left over stays a few."""
    body = SENDING.replace("new_run(RUN, toy, every=None)", "new_run(RUN, toy, every=None, keep=Last(1))")
    train = script(tmp_path, body)
    counts = []
    for step in range(5):
        stopped = launch(train, step, "TERM")
        assert 75 == stopped.code, stopped
        counts.append(len(names(tmp_path / "run")))
    assert [1, 2, 3, 1, 2] == counts
