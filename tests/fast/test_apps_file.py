"""App files: a program described in TOML, without the program."""

import os
import time
from pathlib import Path

import pytest

from holdfast.apps.file import AppFile, read
from holdfast.apps.program import ProgramExit
from holdfast.errors import UsageError
from stores import invoke

LEAST = {
    "start": '["solve"]',
    "resume": '["solve", "{checkpoint}"]',
    "checkpoint": '["state.*"]',
    "finished": '{ files = ["result"] }',
}


def app(**changes):
    """A small app file, some of it otherwise; None: left out."""
    return "".join(f"{key} = {value}\n" for key, value in {**LEAST, **changes}.items() if value is not None)


MISTAKES = [
    (app(start=None), "Object missing required field `start`"),
    (app(finished=None), "Object missing required field `finished`"),
    (app(restart='["x"]'), "Object contains unknown field `restart`"),
    (app(finished="{ file = 3 }"), "Object contains unknown field `file` - at `$.finished`"),
    (app(checkpoint="[]"), "Expected `array` of length >= 1 - at `$.checkpoint`"),
    (app(start="[]"), "Expected `array` of length >= 1 - at `$.start`"),
    (app(start='["solve", "{checkpoint}"]'), "`start` has {checkpoint}, and there is none at the first start"),
    (app(finished="{}"), "`finished` needs `files`, `output` or both: exit codes do not tell whether it is done"),
    (app(checkpoint='["../state"]'), "`checkpoint`: '../state' leads out of the directory in which the program runs"),
    (app(checkpoint='["/state"]'), "`checkpoint`: '/state' leads out of the directory in which the program runs"),
    (
        app(finished='{ files = ["a/../../b"] }'),
        "`finished.files`: 'a/../../b' leads out of the directory in which the program runs",
    ),
    (app(stop='"HARD"'), "`stop`: 'HARD' is no signal; write one as TERM or INT, or a command as a list of words"),
    (app(stop="[]"), "Expected `array` of length >= 1 - at `$.stop`"),
    (app(stop="15"), "Expected `str | array`, got `int` - at `$.stop`"),
    (app(damaged='"("'), "`damaged`: '(' is no regular expression: missing ), unterminated subpattern at position 0"),
    (app(finished='{ output = "[" }'), "`finished.output`: '[' is no regular expression"),
    (app(settle_s="-1"), "Expected `float` >= 0.0 - at `$.settle_s`"),
    (app(settle_s="inf"), "Expected `float` <= 1000000000.0 - at `$.settle_s`"),
    (app(settle_s="nan"), "Expected `float` >= 0.0 - at `$.settle_s`"),
    (app(stop='"_IGN"'), "`stop`: '_IGN' is no signal"),
    (app(checkpoint='["a**"]'), "`checkpoint`: 'a**': write ** alone between two slashes"),
    (app(start=r'["a\u0000b"]'), r"Expected `str` matching regex '^[^\\0]*$' - at `$.start[0]`"),
    (app(checkpoint=r'["a\u0000b"]'), r"Expected `str` matching regex '^[^\\0]*$' - at `$.checkpoint[0]`"),
    (app(damaged='"a{99999999999}"'), "`damaged`: 'a{99999999999}' is no regular expression"),
    (app(damaged=f'"{"(" * 3000}{")" * 3000}"'), "is no regular expression"),
    ("start = " + "[" * 100_000, "too many brackets inside of one another"),
    ("start = [", "Invalid value (at end of document)"),
]


def test_the_supervisors_own_directory_is_no_checkpoint(tmp_path):
    """`**/*` would take the store into the store, and find it changed each time. With `--run .` the adapter's room is
    left out.
    """
    for room, files in (("run/app", ["app/limit", "state"]), ("app", ["run/shard", "state"])):
        parsed(tmp_path, checkpoint='["**/*"]')
        program = AppFile(read(tmp_path / "app.toml"), tmp_path, tmp_path / room)
        program.begin([], None, None)
        for name in ("run/shard", "app/limit", "state"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(room)
        assert [tmp_path / name for name in files] == program.checkpoint().files


def test_each_mistake_is_one_clear_line(tmp_path):
    """With the file's name, and before anything is started."""
    file = tmp_path / "app.toml"
    for text, line in MISTAKES:
        file.write_text(text)
        with pytest.raises(UsageError) as caught:
            read(file)
        said = str(caught.value)
        assert said.startswith(f"{file}: ")
        assert line in said
        assert "\n" not in said


def test_a_mistake_ends_the_command_with_2(tmp_path, monkeypatch):
    """No such file, no such app, no command where the app needs one or one where it needs none: a line each."""
    monkeypatch.chdir(tmp_path)
    Path("app.toml").write_text(app(start=None))
    Path("whole.toml").write_text(app())
    for name, command, line in (
        ("app.toml", ["true"], "app.toml: Object missing required field `start`"),
        ("absent.toml", ["true"], "absent.toml: No such file or directory"),
        (
            "gromax",
            ["true"],
            "--app gromax: not known; say gromacs, lammps, dmtcp, criu, or name a file that ends in .toml",
        ),
        ("whole.toml", ["true"], "`start` has no {command} to take it"),
        *((name, [], "Missing argument 'COMMAND...'; see") for name in ("gromacs", "lammps", "dmtcp", "criu")),
    ):
        result = invoke("run", "--app", name, "--", *command)
        assert (2, "") == (result.exit_code, result.stdout), name
        assert line in result.stderr.splitlines()[-1]


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
    for at, name in enumerate(("state.9", "rng.9", "state.10", "rng.10"), time.time_ns()):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, ns=(at, at))
    assert [tmp_path / "rng.10", tmp_path / "state.10"] == [*program.checkpoint().files]


BOTH = '{ files = ["result", "*.log"], output = "(?m)^ok" }'
MISSING = "result was not written, and its last lines do not match '(?m)^ok'"
ENDS = [
    # how it ended, the files that it wrote, `finished` where it is another, what that means, and what is missing
    (ProgramExit(0, "", told=False), ["result"], None, "done", ""),
    (ProgramExit(0, "", told=False), [], None, "stopped", "result was not written"),
    (ProgramExit(1, "", told=True), [], None, "stopped", "result was not written"),
    (ProgramExit(1, "", told=False), ["result"], None, "failed", ""),
    (ProgramExit(1, "cannot read state", told=False, resumed=True), [], None, "damaged", "result was not written"),
    (ProgramExit(0, "", told=False), ["a.log"], BOTH, "stopped", MISSING),
    (ProgramExit(0, "x\nok, normal termination", told=False), ["result", "a.log"], BOTH, "done", ""),
]


def test_done_is_what_the_file_says(tmp_path):
    """The files are there, new, the output says so, and the code is 0; 0 alone has stopped early, and has not asked for
    anything.
    """
    (tmp_path / "kept").mkdir()
    for ended, written, finished, expected, lacks in ENDS:
        (tmp_path / "result").write_text("of an earlier run")
        program = parsed(tmp_path, damaged='"cannot read"', **{} if finished is None else {"finished": finished})
        program.begin([], tmp_path / "kept", None)
        for name in written:
            (tmp_path / name).write_text(f"{finished} {ended}")
        assert (expected, lacks) == (program.verdict(ended), program.lacks), (ended, written)


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
