"""Programs that an app file describes, under the supervisor, as real processes. The example is that of docs/apps.md."""

import json
import re
from pathlib import Path

import pytest

from holdfast import Store
from programs import Watched, interrupted, planted, steps
from supervised import until

DOCUMENT = (Path(__file__).parents[2] / "docs" / "apps.md").read_text()
EXAMPLE = re.findall(r"^```toml\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)[0]
SOLVER = re.findall(r"^```python no-run\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)[0]
SOLVE = ["python3", "solve.py"]


def example(place):
    """Lies in `place` as it stands on the page."""
    place.mkdir(exist_ok=True)
    (place / "app.toml").write_text(EXAMPLE)
    (place / "solve.py").write_text(SOLVER)
    return place


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Of the example, uninterrupted."""
    place = example(tmp_path_factory.mktemp("alone"))
    with Watched(place, "app.toml", SOLVE) as it:
        assert 0 == it.end(), it.said
    return (place / "result.txt").read_text()


def newest(place):
    """The time of its checkpoint, once there is one."""
    file = place / "state.json"
    return file.stat().st_mtime_ns if file.exists() else None


def test_the_example_of_the_page_survives_kills_and_a_bad_checkpoint(tmp_path, result):
    """Told, killed and told again, its result is the uninterrupted one; what matches its pattern `damaged` is set
    aside.
    """
    place = example(tmp_path)
    interrupted(place, "app.toml", SOLVE, ["TERM", "KILL"], lambda: newest(place))
    assert steps(place)
    planted(place, 9, {"state.json": b'{"step": 5'})
    with Watched(place, "app.toml", SOLVE) as it:
        assert 0 == it.end(), it.said
    assert "going on from" in it.printed
    assert ["step-000000009-refused"] == [each.name for each in (place / "run" / "quarantine").iterdir()]
    assert result == (place / "result.txt").read_text()


FAST = """
import json, os, signal, sys, time
step = json.load(open(sys.argv[1]))["step"] if len(sys.argv) > 1 else 0
print("from", step, flush=True)
for step in range(step + 1, 10_000):
    time.sleep(0.6)
    json.dump({"step": step}, open("state.part", "w"))
    os.replace("state.part", "state.json")
"""


def fast(place, settle_s):
    """A supervisor of a program that writes a checkpoint every 0.6 s."""
    (place / "fast.py").write_text(FAST)
    (place / "app.toml").write_text(
        'start = ["python3", "fast.py"]\nresume = ["python3", "fast.py", "{checkpoint}/state.json"]\n'
        f'checkpoint = ["state.json"]\nsettle_s = {settle_s}\nfinished = {{ files = ["result"] }}\n'
    )
    return Watched(place, "app.toml", [])


@pytest.mark.parametrize("left", ["a whole file", "half a file", "half a file, and an older checkpoint"])
def test_what_lies_there_when_all_were_killed_is_gone_on_from(tmp_path, left):
    """Program and supervisor were killed together. A file that was never kept is taken up; with half of one the program
    fails, so it is set aside, and what there was before is used, be it nothing.
    """
    older = "older" in left
    with fast(
        tmp_path, 0.2 if older else 2
    ) as it:  # kept in time, though it is written often; or never unchanged for so long
        until(lambda: len(it.kept()) > 1 if older else newest(tmp_path), "a checkpoint")
        it.kill()
    file = Store(tmp_path / "run").latest().path / "state.json" if older else tmp_path / "state.json"
    expected = json.loads(file.read_text())["step"] if left.startswith("a whole") or older else 0
    if "half" in left:
        (tmp_path / "state.json").write_text('{"step"')
    with fast(tmp_path, 2) as it:
        until(lambda: it.printed.count("from ") > 1, "a second start")
    assert f"from {expected}\n" == it.printed[it.before :]
    aside = [each.name[-5:] for each in (tmp_path / "run" / "quarantine").iterdir()]
    assert ["-left"] * ("half" in left) == aside


ZERO = "holdfast: app: exit 0, but `finished` does not hold: result was not written"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ('["bash", "-c", "echo over; exit 3"]', 8, ["holdfast: app: exit 3; it ended with", "over"]),
        (
            '["true"]',
            8,
            [
                f"{ZERO}; started again",
                f"{ZERO}: 2 attempts in a row got no further",
            ],
        ),
    ],
)
def test_a_program_that_the_file_names_whole_needs_no_command(tmp_path, words, code, said):
    """Its failure is told by the file's name; one that ends too early has not asked for anything."""
    rest = 'checkpoint = ["state.*"]\nresume = ["true", "{checkpoint}"]\nfinished = { files = ["result"] }\n'
    (tmp_path / "app.toml").write_text(f"start = {words}\n{rest}")
    with Watched(tmp_path, "app.toml", [], "--max-no-progress", "2") as it:
        assert code == it.end()
    assert said == it.said.splitlines()


@pytest.mark.parametrize("sent", ["TERM", "INT"])
def test_ctrl_c_is_said_only_of_ctrl_c(tmp_path, sent):
    """Also of a program that is stopped with SIGINT whatever came."""
    loop = "trap 'exit 3' INT; echo ready; while :; do sleep 0.05; done"
    (tmp_path / "app.toml").write_text(
        f'start = ["bash", "-c", "{loop}"]\ncheckpoint = ["state.*"]\nresume = ["true", "{{checkpoint}}"]\n'
        'stop = "INT"\nfinished = { files = ["result"] }\n'
    )
    with Watched(tmp_path, "app.toml", []) as it:
        until(lambda: "ready" in it.printed, "its first words")
        it.send(sent)
        it.end()
    assert ["INT"] == [event["signal"].removeprefix("SIG") for event in it.events("handed")]
    assert (sent == "INT") == ("Ctrl-C" in it.said)


OWN = """
import json, os, random, sys, time
state = json.load(open("state.json")) if os.path.exists("state.json") else {"step": 0, "sum": 0.0}
print("from", state["step"], flush=True)
while state["step"] < 30:
    time.sleep(0.1)
    state["step"] += 1
    state["sum"] += random.Random(state["step"]).random()
    if state["step"] % 5 == 0:
        json.dump(state, open("state.json", "w"))
with open("result.txt", "w") as file:
    print(state, file=file)
"""
OWN_APP = """
start = ["{command}"]
checkpoint = ["state.json"]
settle_s = 0.2
finished = { files = ["result.txt"] }
"""


def test_a_program_that_reads_its_own_file_survives_kills(tmp_path, result):
    """It knows nothing of checkpoints of ours, and writes its file in place. Before each start the file is whole, and
    what others have made of it meanwhile is set aside and told.
    """
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "app.toml").write_text(OWN_APP)
    words = ["python3", "own.py"]
    interrupted(tmp_path, "app.toml", words, ["TERM", "SUPERVISOR", "KILL"], lambda: newest(tmp_path))
    (tmp_path / "state.json").write_text('{"step": 7')
    with Watched(tmp_path, "app.toml", words) as it:
        assert 0 == it.end(), it.said
    assert result == (tmp_path / "result.txt").read_text()
    begun = [int(line.split()[1]) for line in it.printed.splitlines()]
    assert begun == sorted(begun)
    assert begun[-1] > 0
    assert '{"step": 7' in [path.read_text() for path in (tmp_path / "run" / "app").glob("found-*/state.json")]
    assert it.said.splitlines()[-1].startswith("holdfast: own.py: done after ")
    assert f"; {tmp_path}/run keeps its last checkpoint, step " in it.said.splitlines()[-1]


CRASHES = """
cat state 2>&-
if [ ! -e crashed ]; then touch crashed; echo half > state; exit 3; fi
touch result
"""


@pytest.mark.parametrize("before", ["", "10\n"])
def test_a_start_that_crashes_before_anything_was_kept_costs_nothing(tmp_path, before):
    """The program finds again what lay there before its first start, or nothing."""
    if before:
        (tmp_path / "state").write_text(before)
    (tmp_path / "app.toml").write_text(
        f"start = ['''bash''', '''-c''', '''{CRASHES}''']\n"
        "checkpoint = ['state']\nfinished = { files = ['result'] }\n"
    )
    with Watched(tmp_path, "app.toml", [], "--retries", "1") as it:
        assert 0 == it.end(), it.said
    assert 2 * before == it.printed
    assert "half\n" == (tmp_path / "run" / "app" / "replaced" / "state").read_text()
