"""App files: a program described in TOML. The example is the one in docs/apps.md, read out of the page and run."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.apps.file import AppFile, read
from holdfast.apps.program import Ended
from holdfast.errors import UsageError
from programs import Watched, interrupted, steps
from supervised import until

DOCUMENT = (Path(__file__).parents[2] / "docs" / "apps.md").read_text()
EXAMPLE = re.search(r"^```toml\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)[1]
SOLVER = re.search(r"^```python no-run\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)[1]
LEAST = {
    "start": '["solve"]',
    "resume": '["solve", "{checkpoint}"]',
    "checkpoint": '["state.*"]',
    "finished": '{ files = ["result"] }',
}


def app(**changes):
    """A small app file, some of it otherwise; None: left out."""
    return "".join(f"{key} = {value}\n" for key, value in {**LEAST, **changes}.items() if value is not None)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "app.toml").write_text(EXAMPLE)
    (tmp_path / "solve.py").write_text(SOLVER)
    return tmp_path


def newest(place):
    """The time of its checkpoint, once there is one."""
    file = place / "state.json"
    return file.stat().st_mtime_ns if file.exists() else None


def uninterrupted(place):
    (place / "alone").mkdir()
    (place / "alone" / "solve.py").write_text(SOLVER)
    (place / "alone" / "app.toml").write_text(EXAMPLE)
    with Watched(place / "alone", "app.toml", ["python3", "solve.py"]) as it:
        assert 0 == it.end(), it.said
    return (place / "alone" / "result.txt").read_text()


@pytest.mark.slow
def test_the_example_of_the_page_survives_kills(place):
    """As it stands there: told, killed and told again, its result is the uninterrupted one."""
    interrupted(place, "app.toml", ["python3", "solve.py"], ["TERM", "KILL", "TERM"], lambda: newest(place))
    assert steps(place)
    with Watched(place, "app.toml", ["python3", "solve.py"]) as it:
        assert 0 == it.end(), it.said
    assert "going on from" in it.printed
    assert uninterrupted(place) == (place / "result.txt").read_text()


@pytest.mark.slow
def test_a_checkpoint_that_the_program_calls_bad_is_quarantined(place):
    """By the pattern `damaged` of the page's example."""
    interrupted(place, "app.toml", ["python3", "solve.py"], ["TERM"], lambda: newest(place))
    store = Store(place / "run")
    with store.directory(step=9) as bad:
        (bad / "state.json").write_text('{"step": 5')
    store.close()
    with Watched(place, "app.toml", ["python3", "solve.py"]) as it:
        assert 0 == it.end(), it.said
    assert ["step-000000009-refused"] == [each.name for each in (place / "run" / "quarantine").iterdir()]
    assert uninterrupted(place) == (place / "result.txt").read_text()


def test_a_program_that_the_file_names_whole_needs_no_command(tmp_path):
    """With one, the file says where it would go."""
    words = '["bash", "-c", "echo over; exit 3"]'
    (tmp_path / "app.toml").write_text(app(start=words))
    with Watched(tmp_path, "app.toml", []) as it:
        assert 8 == it.end()
    assert "over\n" == it.printed
    assert "holdfast: app: exit 3; it ended with" in it.said
    with Watched(tmp_path, "app.toml", ["true"]) as it:
        assert 2 == it.end()
    assert "`start` has no {command} to take it" in it.said


@pytest.mark.parametrize("name", ["gromacs", "lammps", "dmtcp", "criu"])
def test_an_app_with_a_name_needs_a_command(tmp_path, name):
    with Watched(tmp_path, name, []) as it:
        assert 2 == it.end()
    assert "holdfast: Missing argument 'COMMAND...'; see holdfast run --help" in it.said


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
    """An app file for a program that writes a checkpoint every 0.6 s; its command."""
    command = 'start = ["python3", "fast.py"]\nresume = ["python3", "fast.py", "{checkpoint}/state.json"]\n'
    (place / "fast.py").write_text(FAST)
    (place / "app.toml").write_text(
        f'{command}checkpoint = ["state.json"]\nsettle_s = {settle_s}\nfinished = {{ files = ["result"] }}\n'
    )
    return []


@pytest.mark.slow
def test_a_program_that_writes_often_is_kept_while_it_runs(tmp_path):
    """Its files are looked at again after `settle_s`, and not seconds later when they have long changed."""
    with Watched(tmp_path, "app.toml", fast(tmp_path, 0.2)) as it:
        until(lambda: it.home.joinpath("checkpoints").is_dir() and len(steps(tmp_path)) > 1, "two checkpoints")


@pytest.mark.slow
def test_what_lies_there_when_all_were_killed_is_gone_on_from(tmp_path):
    """Nothing of it had ever settled; the program and its supervisor were killed together."""
    command = fast(tmp_path, 2)
    with Watched(tmp_path, "app.toml", command) as it:
        until(lambda: newest(tmp_path), "a checkpoint of its own")
        it.process.kill()
        it.process.wait()
        until(lambda: not it.left(), "the end of what it started")
    there = json.loads((tmp_path / "state.json").read_text())["step"]
    with Watched(tmp_path, "app.toml", command) as it:
        until(lambda: it.printed.count("from ") > 1, "a second start")
    assert f"from {there}\n" in it.printed


@pytest.mark.slow
@pytest.mark.parametrize("older", [False, True])
def test_half_a_file_of_a_killed_start_costs_nothing_but_itself(tmp_path, older):
    """The program fails with it: set aside, and what there was before is used, be it nothing."""
    command = fast(tmp_path, 0.2 if older else 2)
    with Watched(tmp_path, "app.toml", command) as it:
        until(lambda: it.home.joinpath("checkpoints").is_dir() and steps(tmp_path) if older else newest(tmp_path))
        it.process.kill()
        it.process.wait()
        until(lambda: not it.left(), "the end of what it started")
    good = Store(tmp_path / "run").latest().path if older else None
    expected = json.loads((good / "state.json").read_text())["step"] if good is not None else 0
    (tmp_path / "state.json").write_text('{"step"')
    with Watched(tmp_path, "app.toml", command) as it:
        until(lambda: it.printed.count("from ") > 1, "a second start")
    assert f"from {expected}\n" == it.printed[it.before :]
    (aside,) = (tmp_path / "run" / "quarantine").iterdir()
    assert aside.name.endswith("-left")


MISTAKES = [
    (app(start=None), "the key `start` is missing"),
    (app(finished=None), "the key `finished` is missing"),
    (app(restart='["x"]'), "there is no key `restart`"),
    (app(finished="{ file = 3 }"), "`finished`: there is no key `file`"),
    (app(start='"solve"'), "`start`: Expected `array`, got `str`"),
    (app(start="[1]"), "`start[0]`: Expected `str`, got `int`"),
    (app(checkpoint="[]"), "`checkpoint` is empty"),
    (app(start="[]"), "`start` is empty"),
    (app(resume='["solve"]'), "`resume` has no {checkpoint}: the program could not find what it goes on from"),
    (app(finished="{}"), "`finished` needs `files`, `output` or both: exit codes do not tell whether it is done"),
    (app(checkpoint='["../state"]'), "`checkpoint`: '../state' leads out of the directory in which the program runs"),
    (app(checkpoint='["/state"]'), "`checkpoint`: '/state' leads out of the directory in which the program runs"),
    (
        app(finished='{ files = ["a/../../b"] }'),
        "`finished.files`: 'a/../../b' leads out of the directory in which the program runs",
    ),
    (app(stop='"HARD"'), "`stop`: 'HARD' is no signal; write one as TERM or INT, or a command as a list of words"),
    (app(stop="[]"), "`stop` is empty"),
    (app(stop="15"), "`stop`: Expected `str | array`, got `int`"),
    (app(damaged='"("'), "`damaged`: '(' is no regular expression: missing ), unterminated subpattern at position 0"),
    (app(finished='{ output = "[" }'), "`finished.output`: '[' is no regular expression"),
    (app(settle_s="-1"), "`settle_s` is no span of time"),
    (app(settle_s="inf"), "`settle_s` is no span of time"),
    (app(settle_s="nan"), "`settle_s` is no span of time"),
    (app(stop='"_IGN"'), "`stop`: '_IGN' is no signal"),
    (app(checkpoint='["a**"]'), "`checkpoint`: 'a**': write ** alone between two slashes"),
    (app(start=r'["a\u0000b"]'), r"`start`: 'a\x00b' holds a zero byte"),
    (app(checkpoint=r'["a\u0000b"]'), r"`checkpoint`: 'a\x00b' holds a zero byte"),
    (app(damaged='"a{99999999999}"'), "`damaged`: 'a{99999999999}' is no regular expression"),
    (app(damaged=f'"{"(" * 3000}{")" * 3000}"'), "is no regular expression"),
    ("start = " + "[" * 100_000, "too many brackets inside of one another"),
    ("start = [", "Invalid value (at end of document)"),
    ("start = 5 5", "Expected newline"),
]


def test_the_supervisors_own_directory_is_no_checkpoint(tmp_path):
    """`**/*` would take the store into the store, and find it changed each time."""
    program = parsed(tmp_path, settle_s="0", checkpoint='["**/*"]')
    program.begin([], None, None)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "shard").touch()
    (tmp_path / "state").touch()
    assert [tmp_path / "state"] == program.checkpoint().files


def test_a_supervisor_that_has_the_programs_directory_takes_its_files_all_the_same(place):
    """`--run .`"""
    program = AppFile(read(place / "app.toml"), place, place / "app")
    program.begin(["python3", "solve.py"], None, None)
    (place / "state.json").touch()
    program.verdict(Ended(0, "", told=False))
    assert [place / "state.json"] == program.checkpoint().files


@pytest.mark.parametrize(("text", "line"), MISTAKES)
def test_each_mistake_is_one_clear_line(tmp_path, text, line):
    """With the file's name, and before anything is started."""
    file = tmp_path / "app.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read(file)
    said = str(caught.value)
    assert said.startswith(f"{file}: ")
    assert line in said
    assert "\n" not in said


def test_a_mistake_ends_the_command_with_2(tmp_path):
    """No such file, no such app: one line each."""
    (tmp_path / "app.toml").write_text(app(start=None))
    for name, line in (
        ("app.toml", "app.toml: the key `start` is missing"),
        ("absent.toml", "absent.toml: No such file or directory"),
        ("gromax", "--app gromax: there is gromacs, lammps, dmtcp, criu, or a file whose name ends in .toml"),
    ):
        with Watched(tmp_path, name, ["true"]) as it:
            assert 2 == it.end()
        assert line in it.said.splitlines()[-1]


def parsed(place, **changes):
    (place / "app.toml").write_text(app(**changes))
    return AppFile(read(place / "app.toml"), place, place / "run" / "app")


def test_the_command_goes_where_the_file_says(tmp_path):
    """`{command}` takes the words from behind `--`; a pattern in the checkpoint becomes its files, as in a shell."""
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("ck-1", "ck-2"):
        (kept / name).touch()
    program = parsed(tmp_path, start='["nice", "{command}"]', resume='["{command}", "--from={checkpoint}/ck-*"]')
    assert ["nice", "a", "b"] == program.begin(["a", "b"], None, None)
    expected = ["a", f"--from={kept}/ck-1", f"--from={kept}/ck-2"]
    assert expected == program.begin(["a"], kept, None)
    with pytest.raises(UsageError, match="there is none"):
        program.begin([], None, None)
    with pytest.raises(UsageError, match="leave one of them out"):
        parsed(tmp_path).begin(["a"], None, None)
    assert ["solve", str(kept)] == parsed(tmp_path).begin([], kept, None)


def test_only_new_files_count(tmp_path):
    """What was there before is another's; how long the others have to stay as they are, the file says."""
    (tmp_path / "state.1").write_text("old")
    program = parsed(tmp_path, settle_s="0.2")
    program.begin([], None, None)
    assert program.checkpoint() is None
    (tmp_path / "state.2").write_text("new")
    assert ([tmp_path / "state.2"], 0.2) == (program.checkpoint().files, program.checkpoint().settle_s)


def test_of_numbered_files_the_newest_may_do(tmp_path):
    """With `newest`, one of each pattern."""
    program = parsed(tmp_path, settle_s="0", newest="true", checkpoint='["state.*", "rng.*"]')
    program.begin([], None, None)
    for name in ("state.9", "rng.9", "state.10", "rng.10"):
        (tmp_path / name).write_text(name)
        time.sleep(0.01)
    assert [tmp_path / "rng.10", tmp_path / "state.10"] == [*program.checkpoint().files]


ENDS = [
    (Ended(0, "", told=False), True, "done"),
    (Ended(0, "", told=False), False, "stopped"),
    (Ended(1, "", told=True), False, "stopped"),
    (Ended(1, "", told=False), True, "failed"),
    (Ended(1, "cannot read state", told=False), False, "damaged"),
]


@pytest.mark.parametrize(("ended", "finished", "expected"), ENDS)
def test_done_is_what_the_file_says(tmp_path, ended, finished, expected):
    """The files are there, new, and the code is 0; 0 alone has stopped early."""
    (tmp_path / "result").write_text("of an earlier run")
    (tmp_path / "kept").mkdir()
    program = parsed(tmp_path, damaged='"cannot read"')
    program.begin([], tmp_path / "kept", None)
    if finished:
        (tmp_path / "result").write_text("42")
    assert expected == program.verdict(ended)


def test_what_is_missing_is_said(tmp_path):
    """A program that ends with 0 too early has not asked for anything."""
    finished = '{ files = ["result", "*.log"], output = "^ok" }'
    program = parsed(tmp_path, finished=finished)
    program.begin([], None, None)
    (tmp_path / "a.log").touch()
    assert "stopped" == program.verdict(Ended(0, "", told=False))
    assert "result was not written, and its last lines do not match '^ok'" == program.lacks()


def test_a_program_that_ends_too_early_did_not_ask_to_be_run_again(tmp_path):
    (tmp_path / "app.toml").write_text(app(start='["true"]', resume='["true", "{checkpoint}"]'))
    with Watched(tmp_path, "app.toml", [], "--max-no-progress", "2") as it:
        assert 8 == it.end()
    lacks = "holdfast: app: exit 0, but `finished` does not hold: result was not written"
    assert [f"{lacks}; started again", f"{lacks}: 2 attempts in a row got no further"] == it.said.splitlines()


def test_output_may_say_it(tmp_path):
    """A pattern in the last lines."""
    program = parsed(tmp_path, finished='{ output = "(?m)^Normal termination" }')
    program.begin([], None, None)
    assert "done" == program.verdict(Ended(0, "x\nNormal termination of solver", told=False))
    assert "stopped" == program.verdict(Ended(0, "Stopped early", told=False))


def test_what_a_killed_start_has_left_is_newer_than_that_start(tmp_path):
    """Asked before `begin`, by the next supervisor."""
    for name, age_s in (("state.1", 50), ("state.2", 30)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    assert [tmp_path / "state.2"] == parsed(tmp_path).left(time.time() - 40).files
    assert parsed(tmp_path).left(time.time() - 20) is None


def test_it_stops_as_the_file_says(tmp_path):
    """One signal for all, or a command that gets the process id."""
    assert 2 == parsed(tmp_path, stop='"INT"').stop(15, 7)
    assert ["ctl", "stop", "7"] == parsed(tmp_path, stop='["ctl", "stop", "{pid}"]').stop(15, 7)
