"""R and Octave under the supervisor: killed in any way, an example ends with the bytes of the uninterrupted one."""

import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from needed import missing
from programs import Watched, interrupted, steps

EXAMPLES = Path(__file__).parents[2] / "examples"


class Subject(NamedTuple):
    """An example, and what the laws have to know of it."""

    command: list[str]
    state: str
    result: str
    last: int  # its counter at the end
    shorter: dict[str, str]  # what is changed in the example, so that it ends sooner


SUBJECTS = {
    "r": Subject(["Rscript", "bootstrap.R"], "state.rds", "result.csv", 1500, {"3000": "1500"}),
    "octave": Subject(["octave-cli", "ising.m"], "state.mat", "result.txt", 2400, {"6000": "2400", "250": "100"}),
}


def example(name, place):
    """Put a short form of it there."""
    shutil.copytree(EXAMPLES / name, place, dirs_exist_ok=True)
    script = place / SUBJECTS[name].command[-1]
    text = script.read_text()
    for word, other in SUBJECTS[name].shorter.items():
        assert word in text
        text = text.replace(word, other)
    script.write_text(text)


@pytest.fixture(scope="module", params=SUBJECTS)
def name(request):
    """The name of one that is installed."""
    if reason := missing(SUBJECTS[request.param].command[0]):
        pytest.skip(reason)
    return request.param


@pytest.fixture(scope="module")
def whole(name, tmp_path_factory):
    """The result of the script alone."""
    place = tmp_path_factory.mktemp("whole")
    example(name, place)
    subprocess.run(SUBJECTS[name].command, check=True, cwd=place, capture_output=True)
    return (place / SUBJECTS[name].result).read_bytes()


@pytest.fixture
def background():
    """As in a script that starts us with `&`: Ctrl-C is ignored by all that it starts."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("background")
def test_kills_leave_no_trace_in_the_results_of_a_language(name, whole, tmp_path):
    """Told twice and killed twice, once together with the supervisor, it goes on each time from a later step. What was
    written over its file meanwhile does not count.
    """
    example(name, tmp_path)
    subject = SUBJECTS[name]
    file = tmp_path / subject.state
    interrupted(
        tmp_path,
        "app.toml",
        subject.command,
        ["TERM", "SUPERVISOR", "KILL", "USR1"],
        lambda: file.stat().st_mtime_ns if file.exists() else None,
    )
    file.write_bytes(file.read_bytes()[:100])
    with Watched(tmp_path, "app.toml", subject.command) as it:
        assert 0 == it.end(), it.said
    assert whole == (tmp_path / subject.result).read_bytes()
    resumed = [int(step) for step in re.findall(r"^going on from (\d+)", it.printed, re.MULTILINE)]
    assert len(resumed) > 2  # what a killed one has printed may be lost
    assert resumed == sorted(resumed)
    assert 0 < resumed[0] <= resumed[-1] < subject.last
    assert f"{subject.state}: not what was kept" in it.said
    command = subject.command[-1]
    last = it.said.splitlines()[-1]
    assert re.match(rf"holdfast: {re.escape(command)}: done after \d+ starts \(", last)
    assert last.endswith(f"; {tmp_path}/run keeps its last checkpoint, step {steps(tmp_path)[-1]}")
