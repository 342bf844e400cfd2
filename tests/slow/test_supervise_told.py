"""The supervisor told by others than Slurm: a cloud that takes the machine back, and Grid Engine."""

import json
import sys

import pytest

from holdfast import journal
from supervised import Supervised, python, until

WAITS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("listening", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("name", "variable", "path"),
    [
        ("aws", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "/latest/meta-data/spot/instance-action"),
        ("gcp", "GCE_METADATA_HOST", "/computeMetadata/v1/instance/preempted"),
    ],
)
def test_a_supervised_command_is_told_when_the_cloud_takes_the_machine_back(tmp_path, service, name, variable, path):
    """Not before; then it gets SIGTERM, may save, and is not started again here."""
    out = tmp_path / "out"

    def answers(method, asked, headers):
        if method == "PUT":
            return 200, "token"
        assert asked == path
        if not (out.exists() and "listening" in out.read_text()):
            return 404, ""
        return 200, "TRUE" if name == "gcp" else json.dumps({"action": "terminate", "time": "2026-01-01T00:00:00Z"})

    service.answers = answers
    host = f"127.0.0.1:{service.server_port}"
    address = {variable: host if name == "gcp" else f"http://{host}/"}
    command = (sys.executable, "-c", WAITS)
    with Supervised(tmp_path, command, "--run", tmp_path / "place", "--spot", name, **address) as it:
        assert it.end() == 75
        assert "the cloud takes this machine back: the command is told to stop" in it.err.read_text()
    events = journal.read(tmp_path / "place" / "supervisor.jsonl")
    assert ["spot notice"] == [event["signal"] for event in events if event["event"] == "signal"]
    assert "stop" == events[-1]["event"]
    assert 1 == sum(event["event"] == "start" for event in events)


SAVES = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("notice", "expected"), [("USR1", 99), ("TERM", 75)])
def test_the_supervisor_ends_with_the_schedulers_own_code(tmp_path, notice, expected):
    """Grid Engine starts again what ends with 99; after a SIGTERM, which may be a qdel, it is not asked to."""
    with Supervised(tmp_path, python(SAVES), JOB_ID="120", SGE_TASK_ID="undefined") as it:
        until(lambda: it.printed == "ready\n")
        it.send(notice)
        assert expected == it.end(), it.said
    said = "exit code 99 makes sge start it again" if expected == 99 else "why SIGTERM came is unclear"
    assert said in it.said
