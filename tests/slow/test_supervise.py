"""`holdfast run` on real processes: what it hands on, when it starts again, what it leaves behind, and how it exits."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.provenance import REDACTED
from supervised import Supervised, bash, last_json, parent, python, state, steered, supervised, until

AGAIN = "n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n; echo attempt $n;"
HOLDFAST = [sys.executable, "-m", "holdfast", "run"]


def ready(it, text="ready"):
    """Once the command has printed this, and its start is in the journal."""
    until(lambda: text in it.printed, f"{text!r} in the output")
    until(lambda: it.begun, "the start")


def lines(*numbers):
    return "".join(f"line {number}\n" for number in range(*numbers))


def asked(place, *words):
    """A command that is not expected to take long."""
    return subprocess.run(words, cwd=place, capture_output=True, text=True, check=False, timeout=60)


# Exit codes and starting again -------------------------------------------------------------------------------------

ATTEMPTS = "".join(f"attempt {n}\n" for n in range(5))
ASKED = "holdfast: bash: exit 75; it asked to be run again: started again\n"
DONE = "holdfast: bash: done after 5 starts (4 stopped)\n"
ENDS = {
    # what: (command, options, exit code, stdout, stderr)
    "done": (bash("echo hello; echo trouble >&2"), [], 0, "hello\n", "trouble\n"),
    "a crash is told with its last lines": (
        bash("for i in $(seq 50); do echo line $i; done; exit 3"),
        [],
        8,
        lines(1, 51),
        f"holdfast: bash: exit 3; it ended with\n{lines(31, 51)}",
    ),
    "blanks are no last words": (bash("echo; echo ' '; exit 3"), [], 8, "\n \n", "holdfast: bash: exit 3\n"),
    "a crash without a word": (["false"], [], 8, "", "holdfast: false: exit 1\n"),
    "a signal has its name": (
        bash("kill -SEGV $$"),
        [],
        8,
        "",
        "holdfast: bash: killed by SIGSEGV: `holdfast run --retries 3` would start it again\n",
    ),
    "a script is called by its name": (["bash", "count.sh"], [], 8, "", "holdfast: count.sh: exit 3\n"),
    "75 asks for another start": (bash(f"{AGAIN} [ $n -ge 4 ] || exit 75"), [], 0, ATTEMPTS, 4 * ASKED + DONE),
    "a crash that a retry mends": (
        bash(f"{AGAIN} [ $n -ge 1 ] || exit 4"),
        ["--retries", 1],
        0,
        "attempt 0\nattempt 1\n",
        "holdfast: bash: exit 4; retry 1 of 1: started again\nholdfast: bash: done after 2 starts (1 error)\n",
    ),
    "a script that asks for ever": (
        bash(f"{AGAIN} exit 75"),
        ["--max-no-progress", 3],
        8,
        ATTEMPTS[:30],
        2 * ASKED + "holdfast: bash: exit 75: 3 attempts in a row got no further; it ended with\nattempt 2\n",
    ),
}


@pytest.mark.parametrize("what", ENDS)
def test_a_command_ends_with_its_code_and_its_words(tmp_path, what):
    """Nothing of its output is lost, and the journal tells each start and the end."""
    command, options, code, printed, said = ENDS[what]
    (tmp_path / "count.sh").write_text("exit 3")
    it = supervised(tmp_path, command, *options)
    assert (code, printed, said) == (it.code, it.printed, it.said)
    starts = max(1, printed.count("attempt"))
    assert ["begin", *starts * ["start", "exit", "next"], "failed" if code else "end"] == it.story()


def test_what_stands_right_above_is_not_said_again(tmp_path):
    """Where stdout and stderr are one file, or one pipe, the last lines have just passed by."""
    with (tmp_path / "both").open("ab") as both:
        it = supervised(tmp_path, bash("echo one; echo two >&2; exit 3"), out=both, err=both)
    assert (8, "one\ntwo\nholdfast: bash: exit 3\n") == (it.code, (tmp_path / "both").read_text())
    with Supervised(tmp_path, bash("echo one; echo two >&2; exit 3"), out=subprocess.PIPE, err=subprocess.STDOUT) as it:
        assert b"one\ntwo\nholdfast: bash: exit 3\n" == it.process.stdout.read()
        it.process.stdout.close()
    it = supervised(tmp_path, bash("echo elsewhere; echo two >&2; exit 3"))
    assert "two\nholdfast: bash: exit 3; it ended with\nelsewhere\n" == it.said


@pytest.mark.parametrize(
    ("command", "why"),
    [("no-such-command", "No such file or directory"), ("/etc/passwd", "Permission denied"), ("/", "Permission")],
)
def test_what_cannot_be_started_is_wrong_use(tmp_path, command, why):
    """Exit 2 and one line; nothing was started, and it is not tried again."""
    it = supervised(tmp_path, [command], "--retries", 3)
    assert (2, 1) == (it.code, len(it.said.splitlines()))
    assert it.said.startswith(f"holdfast: cannot start '{command}': {why}")
    assert ["begin", "failed"] == it.story()


def test_what_cannot_begin_is_said_in_one_line(tmp_path):
    """No command, and a directory that cannot be written."""
    it = supervised(tmp_path, [])
    assert (2, "holdfast: Missing argument 'COMMAND...'; see holdfast run --help\n") == (it.code, it.said)
    assert {"out", "err"} == {path.name for path in tmp_path.iterdir()}
    it = supervised(tmp_path, ["true"], "--run", "/proc/nowhere")
    assert (1, 2) == (it.code, len(it.said.splitlines()))
    assert it.said.splitlines()[1].startswith("holdfast: /proc/nowhere")


def test_how_it_went_as_json(tmp_path):
    """The last line of stdout. Secrets of the command line stay out of the journal."""
    it = supervised(tmp_path, ["true", "--api-key", "hunter2"], "--json")
    assert {"exit_code": 0, "attempts": 1, "end": "end"}.items() <= last_json(it.printed).items()
    assert ["true", "--api-key", REDACTED] == it.events("begin")[0]["command"]
    it = supervised(tmp_path, bash("echo last words; exit 3"), "--json", "--run", "failed")
    told = {"version": 1, "exit_code": 8, "end": "failed", "reason": "bash: exit 3", "tail": ["last words"]}
    assert told == last_json(it.printed)


def test_two_supervisors_do_not_share_a_directory(tmp_path):
    """By name the second is refused; without one it takes the next, and says where it keeps its journal."""
    with Supervised(tmp_path, bash("echo ready; exec sleep 600"), "--run", "place") as it:
        ready(it)
        second = asked(tmp_path, *HOLDFAST, "--run", "place", "--", "true")
        assert 2 == second.returncode
        assert f"place: another `holdfast run` may still be running there: pid {it.process.pid} on" in second.stderr
    with Supervised(tmp_path, bash("echo again; exec sleep 600")) as it:
        ready(it, "again")
        second = asked(tmp_path, *HOLDFAST, "--", "bash", "-c", "true")
    home = tmp_path / ".holdfast/bash"
    assert (0, 1) == (second.returncode, len(second.stderr.splitlines()))
    assert f"another `holdfast run` is at work in {home}" in second.stderr
    assert f"this one keeps its journal in {home}-2" in second.stderr
    assert {"bash", "bash-2"} == {path.name for path in home.parent.iterdir()}


def test_a_crash_is_retried_as_often_as_was_said(tmp_path):
    """With growing waits; then it is over."""
    began = time.monotonic()
    it = supervised(tmp_path, bash(f"{AGAIN} exit 4"), "--retries", 2)
    assert (8, 3) == (it.code, len(it.events("start")))
    assert time.monotonic() - began > 0.75 * (0 + 1)
    assert [0.0, 1.0, 0.0] == [event["wait_s"] for event in it.events("next")]
    assert "holdfast: bash: exit 4: no retry left of 2; it ended with\nattempt 2\n" in it.said


# Signals ---------------------------------------------------------------------------------------------------------

LOOP = "echo ready; while :; do sleep 0.05; done"
SAVES = "trap 'echo got {0}; sleep 0.3; echo saved; exit 75' {0}; " + LOOP
RUN_ME_AGAIN = "stopped by SIG{}; run me again"
BY_SIGNAL = "stopped by SIG{0}: killed by SIG{0}"
TOLD = [
    # told, what the command knows, exit code, its output after "ready", what is said
    *((name, SAVES.format(name), 75, f"got {name}\nsaved\n", RUN_ME_AGAIN) for name in ("TERM", "USR1", "USR2", "INT")),
    # programs know SIGTERM better than SIGHUP; and torchrun, for one, dies of SIGUSR1
    *((name, SAVES.format("TERM"), 75, "got TERM\nsaved\n", RUN_ME_AGAIN) for name in ("HUP", "USR1")),
    # it cannot go on later, so the code is what a shell would say of it
    *((name, "echo ready; exec sleep 600", 128 + signal.Signals[f"SIG{name}"], "", BY_SIGNAL)
      for name in ("TERM", "USR1", "USR2")),
    # the save takes longer than a moment
    ("TERM", f"trap 'sleep 6; echo saved; exit 75' TERM; {LOOP}", 75, "saved\n", RUN_ME_AGAIN),
]  # fmt: skip


@pytest.mark.parametrize(("name", "command", "code", "printed", "said"), TOLD)
def test_a_signal_reaches_the_command_which_is_not_started_again(tmp_path, name, command, code, printed, said):
    """Exit 75 when it has saved: whoever told us to stop runs us again."""
    it = steered(tmp_path, bash(command), "ready", name, code=code)
    assert f"ready\n{printed}" == it.printed
    assert it.said.endswith(f"holdfast: bash: {said.format(name)}\n")
    assert ["begin", "start", "signal", "handed", "exit", "next", "stop"] == it.story()
    assert [f"SIG{name}"] == [event["signal"] for event in it.events("signal")]


def test_the_whole_group_hears_it(tmp_path):
    """The command may be a shell that runs the program as its child, and that the signal kills."""
    program = """
import signal, sys, time
def save(number, frame):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as some do: a second one would end it in the midst of the save
    time.sleep(6)
    print("saved")
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready")
time.sleep(600)
"""
    (tmp_path / "program.py").write_text(program)
    it = steered(tmp_path, bash(f"{sys.executable} program.py; echo unreachable"), "ready", "TERM", code=143)
    assert "ready\nsaved\n" == it.printed


def test_the_same_signal_twice_is_handed_on_once_and_different_ones_all(tmp_path):
    """A launcher takes the second for haste and gives up its orderly end. A notice comes first, SIGTERM at the end."""
    trap = "trap 'echo got TERM' TERM; echo ready; for i in $(seq 20); do sleep 0.05; done; exit 75"
    it = steered(tmp_path, bash(trap), "ready", "TERM", "got", "TERM", code=75)
    assert ("ready\ngot TERM\n", 2) == (it.printed, len(it.events("signal")))
    (other := tmp_path / "other").mkdir()
    trap = f"trap 'echo notice' USR1; trap 'echo end; exit 75' TERM; {LOOP}"
    assert "ready\nnotice\nend\n" == steered(other, bash(trap), "ready", "USR1", "notice", "TERM", code=75).printed


def test_a_second_ctrl_c_kills(tmp_path):
    """At once, whatever the command thinks of it."""
    it = steered(tmp_path, bash(f"trap 'echo no' INT; trap '' TERM; {LOOP}"), "ready", "INT", "no", "INT", code=137)
    assert it.events("exit")[0]["time"] - it.events("signal")[1]["time"] < 5
    assert "holdfast: Ctrl-C: it may save and end; a second one kills it\n" in it.said
    assert "a second Ctrl-C: killed" in it.said


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(tmp_path):
    it = steered(tmp_path, bash(f"trap '' TERM; {LOOP}"), "ready", "TERM", code=137, options=("--grace", 1))
    (told,), (killed,) = it.events("signal"), it.events("killed")
    assert 1 <= killed["time"] - told["time"] < 5
    assert "not ended 1 s after it was told to: killed" in it.said
    assert ["begin", "start", "signal", "handed", "killed", "exit", "next", "stop"] == it.story()


def test_a_signal_while_it_waits_to_start_again_ends_it(tmp_path):
    """What was told to stop starts nothing any more."""
    with Supervised(tmp_path, bash(f"{AGAIN} exit 4"), "--retries", 9) as it:
        until(lambda: it.said.count("retry 2 of 9"))
        it.send("TERM")
        assert 4 == it.end()
    assert 2 == len(it.events("start"))
    assert "stop" == it.story()[-1]


def test_a_signal_between_two_starts_ends_it(tmp_path):
    """However the moments fall, it ends, with the last attempt's own meaning: saved, run me again."""
    for delay_s in (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.13):
        place = tmp_path / str(delay_s)
        place.mkdir()
        with Supervised(place, bash(f"{AGAIN} exit 75"), "--max-no-progress", 1000) as it:
            until(lambda: it.printed.count("attempt") > 1)
            time.sleep(delay_s)
            it.send("TERM")
            assert it.end() in {75, 143}
        assert "stop" == it.story()[-1]


def test_a_signal_during_the_childs_start_is_heard_by_it(tmp_path):
    """A Python program needs a moment before it can listen; what would kill it until then waits a little."""
    listens = "import time; time.sleep(0.4)\nimport signal, sys\n"
    listens += "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\ntime.sleep(600)"
    steered(tmp_path, python(listens), "TERM", code=75)


def ignored_in(status):
    """The signals that a process ignores, as bits, by the text of its /proc/PID/status."""
    return int(status.partition("SigIgn:\t")[2].split()[0], 16)


def test_a_signal_at_the_very_end_changes_no_exit_code(tmp_path):
    """The interpreter takes a moment to leave; the outcome was settled before."""
    words = [sys.executable, "-c", SLOW_END]
    for _ in range(3):
        process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert b"leaving\n" == process.stdout.readline()
        ignored = ignored_in(Path(f"/proc/{process.pid}/status").read_text())
        assert ignored >> (signal.SIGTERM - 1) & 1  # a handler would go before the interpreter does
        process.send_signal(signal.SIGTERM)
        assert 75 == process.wait(60)
        process.stdout.close()


def test_ignored_signals_stay_ignored(tmp_path):
    """`nohup holdfast run -- ...` outlives the terminal, and so does its command."""
    words = f"trap '' HUP; exec {sys.executable} -m holdfast run -- bash -c 'kill -HUP $$ $PPID; echo alive'"
    done = asked(tmp_path, *bash(words))
    assert (0, "alive\n") == (done.returncode, done.stdout)


def test_a_script_that_starts_us_in_the_background_makes_no_command_deaf(tmp_path):
    """It ignores Ctrl-C and Ctrl-\\ for what it starts with `&`; what we send the command is meant for it. What nohup
    asks for stays.
    """
    shows = f"trap '' HUP; {sys.executable} -m holdfast run -- cat /proc/self/status & wait"
    ignored = ignored_in(asked(tmp_path, "sh", "-c", shows).stdout)
    kinds = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    assert [signal.SIGHUP] == [number for number in kinds if ignored >> (number - 1) & 1]


def test_what_our_caller_ignores_is_not_ignored_by_the_command(tmp_path):
    """Every signal there is. With SIGCHLD the kernel would reap the command, and nobody learn how it ended."""

    def ignore():
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)

    words = [*HOLDFAST, "--", "cat", "/proc/self/status"]
    done = subprocess.run(
        words, cwd=tmp_path, preexec_fn=ignore, restore_signals=False, capture_output=True, text=True, check=True
    )
    reserved = 0b11 << 31  # signals 32 and 33 are the C library's own: nobody can set or reset them
    assert 1 << (signal.SIGHUP - 1) == ignored_in(done.stdout) & ~reserved


def test_a_batch_script_may_ignore_the_notice_until_it_is_heard(tmp_path):
    """`trap '' USR1; exec holdfast run -- ...`: the supervisor and its command hear it all the same."""
    command = "trap 'echo got USR1; exit 75' USR1; echo ready; while :; do sleep 0.05; done"
    (tmp_path / "command.sh").write_text(command)
    (tmp_path / "job.sh").write_text(f"trap '' USR1\nexec {sys.executable} -m holdfast run -- bash command.sh")
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, stdout=out, stderr=subprocess.DEVNULL)
    until(lambda: "ready" in (tmp_path / "out").read_text())
    process.send_signal(signal.SIGUSR1)
    assert 75 == process.wait(60)
    assert "ready\ngot USR1\n" == (tmp_path / "out").read_text()


SLOW_END = """
import atexit, os, sys, time
from holdfast.cli import main
atexit.register(lambda: (os.write(1, b"leaving\\n"), time.sleep(0.3)))
stops = "trap 'exit 75' TERM; kill -TERM $(cat pid); while :; do sleep 0.05; done"
sys.argv = ["holdfast", "run", "--", "bash", "-c", stops]
open("pid", "w").write(str(os.getpid()))
main()
"""


# What it leaves behind -------------------------------------------------------------------------------------------

DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("daemon", flush=True)
        time.sleep(600)
    os._exit(0)
time.sleep(0.3)
sys.exit(int(sys.argv[1]))
"""
LIVES = python(DAEMON.replace("time.sleep(0.3)", "time.sleep(600)"), "0")


@pytest.mark.parametrize("code", [0, 3])
def test_a_daemon_of_the_command_does_not_outlive_it(tmp_path, code):
    """It left group and session and ignores SIGTERM; the exit code is still the command's."""
    it = supervised(tmp_path, python(DAEMON, str(code)))
    assert (8 if code else 0, "daemon\n") == (it.code, it.printed)


def test_a_bomb_of_grandchildren_is_cleaned_up(tmp_path):
    """Four generations deep, half of them in groups of their own, deaf, each with a new child ten times a second."""
    bomb = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for depth in range(4):
    for _ in range(2):
        if os.fork() == 0:
            if depth % 2:
                os.setsid()
            break
if os.getpid() == int(os.environ["LEADER"]):
    print(os.getpid(), flush=True)
    time.sleep(0.5)
    sys.exit(5)
while True:
    if os.fork() == 0:
        time.sleep(0.1)
        os._exit(0)
    time.sleep(0.1)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
    lead = "import os, sys; os.environ['LEADER'] = str(os.getpid()); "
    lead += f"os.execv(sys.executable, [sys.executable, '-c', {bomb!r}])"
    it = supervised(tmp_path, python(lead))
    assert 8 == it.code
    assert it.said.startswith(f"holdfast: {sys.executable}: exit 5")


def test_zombies_of_orphans_are_reaped_while_the_command_runs(tmp_path):
    """A command that abandons thousands of short-lived processes fills no process table."""
    zombies = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | xargs -r -n1 dirname | "
    zombies += "while read d; do grep -qz SUPERVISED_TAG=$SUPERVISED_TAG $d/environ 2>/dev/null && echo z; done | wc -l"
    abandons = f"for i in $(seq 40); do (sleep 0.01 &) ; done; sleep 0.6; echo $({zombies})"
    it = supervised(tmp_path, bash(abandons))
    assert (0, "0\n") == (it.code, it.printed)


@pytest.mark.parametrize("whole_group", [False, True])
def test_nothing_goes_on_when_the_supervisor_is_killed(tmp_path, whole_group):
    """SIGKILL gives it no time for a word: daemons and all end within a moment."""
    with Supervised(tmp_path, LIVES, alone=True) as it:
        ready(it, "daemon")
        if whole_group:
            os.killpg(it.process.pid, signal.SIGKILL)
        else:
            it.process.kill()
        it.process.wait()
        until(lambda: not it.left(), "the end of all")


def test_nothing_goes_on_when_the_warden_is_killed(tmp_path):
    """The kernel may kill it for want of memory: the command and the daemon are killed, and the failure is told."""
    with Supervised(tmp_path, LIVES) as it:
        ready(it, "daemon")
        warden = parent(it.events("start")[0]["pid"])
        assert warden != it.process.pid
        os.kill(warden, signal.SIGKILL)
        assert 8 == it.end()
    assert f"holdfast: {sys.executable}: killed by SIGKILL" in it.said


def test_the_command_does_not_outlive_both(tmp_path):
    """`pkill -9 holdfast` strikes supervisor and warden at once: the kernel ends the command with its parent."""
    with Supervised(tmp_path, ["sleep", "600"]) as it:
        until(lambda: it.begun)
        command = it.events("start")[0]["pid"]
        warden = parent(command)
        it.send("STOP")  # so that neither sees the other's end
        os.kill(warden, signal.SIGKILL)
        it.process.kill()
        it.process.wait()
        until(lambda: not it.left(), "the end of all")


def test_the_next_supervisor_takes_the_place_of_a_killed_one(tmp_path):
    """Its journal goes on; the one before has no last line."""
    with Supervised(tmp_path, bash("echo ready; sleep 600"), "--run", ".holdfast/it") as it:
        ready(it)
        it.kill()
    again = supervised(tmp_path, ["true"], "--run", ".holdfast/it")
    assert (0, ["begin", "start", "begin", "start", "exit", "next", "end"]) == (again.code, again.story())


# Output ----------------------------------------------------------------------------------------------------------


def test_pipes_carry_every_byte_in_order(tmp_path):
    """stdout and stderr as one pipe, 3 MB of it, into a reader that is slow at first."""
    many = (
        "import sys\nfor i in range(40000):\n (sys.stdout if i % 2 else sys.stderr).write(f'{i:074d}\\n')\nsys.exit(3)"
    )
    with Supervised(tmp_path, python(many), out=subprocess.PIPE, err=subprocess.STDOUT) as it:
        time.sleep(1)
        data, _ = it.process.communicate(timeout=60)
        assert 8 == it.end()
    lines = data.decode().splitlines()
    assert [f"{n:074d}" for n in range(40000)] == lines[:40000]
    assert [f"holdfast: {sys.executable}: exit 3"] == lines[40000:]
    with Supervised(tmp_path, bash("echo a; echo b >&2"), out=subprocess.PIPE, err=subprocess.PIPE) as it:
        assert (b"a\n", b"b\n") == it.process.communicate(timeout=60)  # separate pipes stay apart
        assert 0 == it.end()


def test_a_reader_that_goes_away_ends_the_command_as_ever(tmp_path):
    """`holdfast run -- yes | head -1`."""
    with Supervised(tmp_path, ["yes"], out=subprocess.PIPE) as it:
        assert b"y\n" == it.process.stdout.read(2)
        it.process.stdout.close()
        assert 8 == it.end()
    assert it.said.startswith("holdfast: yes: killed by SIGPIPE")


def test_a_reader_that_stops_reading_holds_up_no_stop(tmp_path):
    """The pipe is full, the command waits in its write; SIGTERM ends both."""
    with Supervised(tmp_path, ["yes"], out=subprocess.PIPE) as it:
        until(lambda: it.begun)
        time.sleep(1.5)
        it.send("TERM")
        assert 143 == it.end()
        it.process.stdout.close()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_has_closed(tmp_path, closed):
    """No pipe of ours takes their place, and the exit code is right."""
    writes = "echo out; echo err >&2; echo done > done; exit 3"
    words = f"{sys.executable} -m holdfast run -- bash -c '{writes}' {closed}"
    done = asked(tmp_path, *bash(words))
    assert (8, "done\n") == (done.returncode, (tmp_path / "done").read_text())
    assert "Traceback" not in done.stderr
    assert ("out\n" in done.stdout, "bash: exit 3" in done.stderr) == (
        ">&-" != closed[:3] and " >" not in closed,
        "2>" not in closed,
    )


def test_a_command_that_removes_our_directory_ends_as_ever(tmp_path):
    """The journal is lost, which is told; the exit code is not."""
    it = supervised(tmp_path, bash("rm -r .holdfast; echo over; exit 3"))
    assert (8, "over\n") == (it.code, it.printed)
    assert "supervisor.jsonl: No such file or directory; supervising goes on, the journal waits" in it.said


def test_a_working_directory_that_was_removed_is_said_by_name(tmp_path):
    """A job whose folder somebody has tidied away: a command would not find its files either."""
    (tmp_path / "gone").mkdir()
    it = supervised(tmp_path, bash(f"cd gone; rmdir ../gone; exec {sys.executable} -m holdfast run -- true"))
    assert 8 == it.code
    assert "holdfast: the working directory has been removed; nothing was started" in it.said
    assert "exit 2" in it.said


def test_on_a_terminal_the_command_has_the_terminal(tmp_path):
    """Its own, for colours and progress; only nothing can be typed, which would stop a process in the background."""
    ours, theirs = pty.openpty()
    asks = (
        "import sys; print([stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)], repr(sys.stdin.read()))"
    )
    process = subprocess.Popen(
        [*HOLDFAST, "--", *python(asks)],
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    assert 0 == process.wait(60)
    assert b"[False, True, True] ''\r\n" == os.read(ours, 1000)
    os.close(ours)


def test_ctrl_c_on_a_terminal_is_a_stop(tmp_path):
    """The terminal tells only us; the command hears it once."""
    script = tmp_path / "command.sh"
    script.write_text(SAVES.format("INT"))
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [*HOLDFAST, "--", "bash", "command.sh"])
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    with suppress(OSError):  # the other side is closed
        while piece := os.read(terminal, 1000):
            seen += piece
    assert 75 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    assert 1 == seen.count(b"got INT")
    assert b"holdfast: command.sh: stopped by SIGINT; run me again" in seen


def test_ctrl_z_stops_the_command_too(tmp_path):
    """And it goes on when we do."""
    counts = "i=0; while :; do echo $((i++)); sleep 0.05; done"
    with Supervised(tmp_path, bash(counts)) as it:
        ready(it, "1")
        it.send("TSTP")
        child = it.events("start")[0]["pid"]
        until(lambda: {"T"} == {state(pid) for pid in (child, it.process.pid)})
        before = it.printed
        time.sleep(0.3)
        assert before == it.printed
        os.kill(it.process.pid, signal.SIGCONT)
        until(lambda: len(it.printed) > len(before))
        it.send("TERM")
        assert 143 == it.end()
