"""What lint claims of bash and cp, tried on them."""

import os
import signal
import subprocess
import time

import pytest

from holdfast.lint import lint_script
from lint_faults import edited


def signalled(script):
    """Exit code and output of a script that is sent SIGUSR1 after its first line, and how long it took."""
    began = time.monotonic()
    shell = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert "ready\n" == shell.stdout.readline()
    shell.send_signal(signal.SIGUSR1)
    out, _ = shell.communicate(timeout=20)
    return shell.returncode, out, time.monotonic() - began


def test_bash_dies_of_a_notice_without_a_trap():
    """notice-unheard."""
    assert -signal.SIGUSR1 == signalled("echo ready; sleep 0.3; echo alive")[0]


def test_exec_takes_the_trap_away_and_leaves_what_is_ignored():
    """trap-before-exec."""
    assert -signal.SIGUSR1 == signalled("trap 'echo heard' USR1; exec sh -c 'echo ready; sleep 0.3'")[0]
    assert (0, "alive\n") == signalled("trap '' USR1; exec sh -c 'echo ready; sleep 0.3; echo alive'")[:2]


def test_a_foreground_child_hides_the_trap_until_it_ends():
    """trap-hidden."""
    code, out, took_s = signalled("trap 'echo heard; exit 3' USR1; sh -c 'echo ready; sleep 0.6'; echo after")
    assert (3, "heard\n") == (code, out)
    assert took_s > 0.6


def test_wait_ends_at_the_first_trapped_signal():
    """wait-once: with the loop the child ends first."""
    child = "(sleep 0.2; echo ready; sleep 0.5; echo saved) & pid=$!;"
    assert "heard\nleft\nsaved\n" == signalled(f"trap 'echo heard' USR1; {child} wait; echo left")[1]
    loop = 'while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done;'
    assert "heard\nsaved\nleft\n" == signalled(f"trap 'echo heard' USR1; {child} {loop} echo left")[1]


def test_cp_with_update_keeps_a_torn_copy(tmp_path):
    """copy-cut-short."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_text("whole")
    os.utime(source, (1, 1))
    copy.write_text("wh")
    subprocess.run(["cp", "--update", source, copy], check=True)
    assert "wh" == copy.read_text()


@pytest.mark.parametrize("waits", ["wait", "wait $pid", 'wait "$pid"'])
@pytest.mark.parametrize("strict", ["", "set -e;"])
def test_the_fix_of_wait_once_waits_until_the_child_has_saved(waits, strict):
    """Also where the script ends at the first failure, as which bash counts an interrupted wait."""
    trap = "trap 'echo heard; kill -CONT $pid' USR1"
    script = f"#!/bin/bash\n{strict} {trap}; ./program & pid=$!; {waits}; echo left"
    (finding,) = (each for each in lint_script(script) if each.rule == "wait-once")
    child = "(sleep 0.2; echo ready; sleep 0.5; echo saved)"
    assert "heard\nsaved\nleft\n" == signalled(edited(script, finding.edits).replace("./program", child))[1]


@pytest.mark.parametrize("status", [0, 3])
def test_the_fix_of_trap_hidden_hears_at_once_and_keeps_the_status(status):
    """The trap runs while the program does; what follows sees the program's own status."""
    script = "#!/bin/bash\ntrap 'echo heard' USR1\n./program > log\necho status $?\n"
    (finding,) = (each for each in lint_script(script) if each.rule == "trap-hidden")
    child = f"sh -c 'echo ready; sleep 0.6; echo ends; exit {status}'"
    mended = edited(script, finding.edits).replace("./program > log", child)
    assert f"heard\nends\nstatus {status}\n" == signalled(mended)[1]
