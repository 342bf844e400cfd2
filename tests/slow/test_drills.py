"""Whole drills: places, damage, output, leftover files, launchers, and the command line.

`test_causes.py` has those of planted scripts.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_drill import is_gone
from test_torchrun_launcher import TRAINS, torchrun

from causes import SCRIPTS, planted, quiet
from holdfast import drill
from holdfast.drill import DrillOptions, report, table
from holdfast.drill.leftovers import Leftover
from holdfast.errors import ChildError
from holdfast.store.store import Store

ONE_KILL = DrillOptions(kills=1, signals=("KILL",), seed=1, damage=False)


@pytest.fixture(scope="module")
def python(zygotes):
    return zygotes("numpy")


def of_toy(python, path, *lines, options=ONE_KILL, name="train.py", after=()):
    """The drill of a program that trains a Toy; `after`: what follows the run's block."""
    head = (
        "import random, sys",
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})",
        "from toy import Toy, new_run",
        "random.seed(1)",
        "toy = Toy()",
        f"with new_run({str(path / 'run')!r}, toy) as run:",
    )
    program = path / name
    program.write_text("\n".join([*head, *(f"    {line}" for line in lines), *after, ""]))
    return drill.drill([*python, str(program)], options, quiet)


# Places -------------------------------------------------------------------------------------------------------------


def test_what_a_loop_counts_from_a_resume_is_found_whatever_it_saves_by(python, tmp_path):
    """Every third index of `enumerate` does more: with saves at multiples of 6 this was called identical."""
    for every in (6, 7):
        found = planted(python, f"thirds {every}", tmp_path, options=DrillOptions(kills=3))
        assert (found.verdict, found.kills_proven) == (report.DIFFERENT, 3)
        assert any(leaf.startswith(("norm", "tree:norm")) for leaf in found.divergence.leaves)
    found = planted(python, "thirds 6", tmp_path, fix=True, options=DrillOptions(kills=3))
    assert (found.verdict, found.kills_proven, found.places) == (report.IDENTICAL, 3, 37)


EPOCHS = ("for _ in run.epochs(3):", "    for batch in run.batches([1, 2, 3, 4, 5, 6, 7]):", "        toy.learn(batch)")


def test_a_run_with_fewer_places_than_kills_is_identical_at_all_of_them(python, tmp_path):
    """Nothing more can be asked of it; and of a run of one step, nothing at all."""
    found, one = (
        of_toy(
            python, tmp_path, f"for step in run.steps({steps}):", "    toy.learn(step)", options=DrillOptions(kills=5)
        )
        for steps in (3, 1)
    )
    assert (found.verdict_line, found.kills_proven, found.exit_code) == ("identical (all 2 places)", 2, 0)
    assert (one.verdict, one.places, one.exit_code) == (report.NOT_PROVEN, 0, 1)
    assert "--steps" in " ".join(one.notes)


def test_a_script_that_fails_by_itself_is_the_users_to_mend(python, tmp_path):
    """Exit 8, with the end of its output. Its first steps are proven all the same, although its own first save would
    come after ten minutes; `--save-every` leads to no other places.
    """
    with pytest.raises(ChildError, match="no more of this") as caught:
        planted(python, "failing", tmp_path, options=ONE_KILL)
    assert caught.value.exit_code == 8
    short = ONE_KILL._replace(steps=12)
    found = planted(python, "failing", tmp_path, options=short)
    assert (found.verdict, found.exit_code, found.kills_proven) == (report.IDENTICAL, 0, 1)
    assert (found.steps, found.saves, found.exempt) == (12, 0, ["step_s"])
    forced = planted(python, "failing", tmp_path, options=short._replace(save_every_steps=4))
    assert (forced.verdict, forced.saves) == (report.IDENTICAL, 2)
    assert [each.kind for each in forced.resumed] == [each.kind for each in found.resumed]


# What a command prints ----------------------------------------------------------------------------------------------

KILLS = DrillOptions(kills=2, signals=("KILL",), damage=False)
LOCAL = ("total, vars_ = 0, run.vars", "for epoch in run.epochs(2):", *EPOCHS[1:], "        total += batch")


def test_a_line_that_differs_is_a_verdict_of_its_own(python, tmp_path):
    """Nothing is logged, and a sum in a local variable is printed at each epoch's end, or once after the loop."""
    after_epoch, after_loop = (
        of_toy(python, tmp_path, *LOCAL, *lines, options=KILLS)
        for lines in (["    print(f'epoch {epoch}: sum {total}, 0.1 s')"], ["    pass", "print('sum', total)"])
    )
    where = after_epoch.divergence
    assert (after_epoch.verdict, after_epoch.exit_code) == (report.OUTPUT_DIFFERS, 1)
    assert (where.phase, where.step % 7, where.cause) == ("step", 0, "accumulator")
    assert "sum 28" in where.what or "sum 56" in where.what
    assert (after_epoch.metric_differences, after_epoch.final_differences) == ([], [])
    assert after_epoch.lines_compared
    assert (after_loop.verdict, after_loop.divergence.phase) == (report.OUTPUT_DIFFERS, "end")


def test_lines_that_are_the_same_after_each_resume_are_identical(python, tmp_path):
    """With timings, start-up lines and words without a newline among them; and they were compared."""
    lines = (
        "import os, time",
        "print('process', os.getpid(), 'began at step', run.step)",
        *EPOCHS,
        "        print('.', end='')",
        "        print(f'value {toy.value} at {time.time()} in process {os.getpid()}', flush=True)",
        "print('value', toy.value)",
    )
    found = of_toy(python, tmp_path, *lines, options=KILLS)
    assert (found.verdict, found.output_differences) == (report.IDENTICAL, [])
    assert found.lines_compared >= 14


# Files that one run leaves to another -----------------------------------------------------------------------------


def test_a_snapshot_from_which_the_second_run_goes_on_is_the_cause(python, tmp_path):
    """The script's own resume: the second run begins with what the first one left."""
    snapshot = str(tmp_path / "snapshot.json")
    lines = (
        "import json, os",
        f"if os.path.exists({snapshot!r}):",
        f"    toy.value = json.load(open({snapshot!r}))",
        "for step in run.steps(9):",
        "    toy.learn(step)",
        f"json.dump(toy.value, open({snapshot!r}, 'w'))",
    )
    found = of_toy(python, tmp_path, *lines)
    assert (found.verdict, found.divergence.cause) == (report.NOT_DETERMINISTIC, "leftover file")
    assert found.leftovers == [Leftover(snapshot, "first", "train.py:12", "second", "train.py:9")]
    assert f"{snapshot}, which undisturbed run 1 wrote at train.py:12" in found.divergence.advice
    shown = "\n".join(table.report_lines(found))
    assert "usual cause (leftover file)" in shown
    assert "what to switch on" not in shown


def test_a_file_that_changes_nothing_is_noted_and_an_own_file_of_the_killed_run_is_not(python, tmp_path):
    """Attempts of one run share everything."""
    shared, own = str(tmp_path / "data.txt"), str(tmp_path / "own.txt")
    lines = (
        "import os",
        f"if not os.path.exists({shared!r}):",
        f"    open({shared!r}, 'w').write('downloaded')",
        f"open({shared!r}).read()",
        f"open({own!r}, 'w' if run.step == 0 else 'r').close()",
        "for step in run.steps(9):",
        "    toy.learn(step)",
    )
    found = of_toy(python, tmp_path, *lines)
    assert found.verdict == report.IDENTICAL
    assert {(each.path, each.reader) for each in found.leftovers} == {(shared, "second"), (shared, "killed")}


def test_a_run_of_which_nothing_can_be_compared_is_not_proven(python, tmp_path):
    script = tmp_path / "nothing.py"
    script.write_text(
        f"from holdfast import Run\nwith Run({str(tmp_path / 'run')!r}, {{}}) as run:\n    [*run.steps(9)]\n"
    )
    found = drill.drill([*python, str(script)], KILLS, quiet)
    assert found.verdict == report.NOT_PROVEN
    assert any("there was nothing to compare" in note for note in found.notes)


# After the loop -------------------------------------------------------------------------------------------------------


# Launchers ------------------------------------------------------------------------------------------------------------

QUICK = TRAINS.replace("0.05", "0.02").replace("steps=20", "steps=5")
BROKEN = """
    with new_run(RUN, toy) as run:
        for step in run.steps(5):
            toy.learn(step)
            if step == 3:
                raise ValueError("my own bug")
"""


def test_a_launcher_that_restarts_by_itself_is_drilled(tmp_path):
    """SIGTERM to torchrun, SIGKILL to all, SIGKILL to a rank: identical. tests/prove has one that does not restart."""
    launcher_is_drilled(tmp_path, "1")


def launcher_is_drilled(tmp_path, restarts):
    options = DrillOptions(kills=3, signals=("RANK", "TERM", "KILL"), seed=2)
    found = drill.drill(torchrun(tmp_path, "--max-restarts", restarts, body=QUICK), options, quiet)
    assert (report.IDENTICAL, 3) == (found.verdict, found.kills_proven)
    assert {"RANK", "TERM", "KILL", None} == {each.signal for each in found.attempts}
    assert (restarts == "1") == any(each.exit is None for each in found.attempts)


# The command line -----------------------------------------------------------------------------------------------------


def cli(*words):
    return [sys.executable, "-c", "from holdfast.cli import main; main()", "drill", *words]


def test_json_is_one_object_on_stdout_and_keep_leaves_the_runs(python, tmp_path):
    """For CI: everything in one object; the runs stay readable where they were asked to stay, with a page of one."""
    keep = tmp_path / "kept"
    words = ("--kills", "1", "--signals", "kill,sigterm", "--json", "--keep", str(keep), "--")
    command = cli(*words, *python, str(SCRIPTS / "own_generator.py"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]) == (1, "different")
    assert found["divergence"]["cause"] == "generator"
    assert found["attempts"][0]["signal"] == "KILL"
    assert {path.name for path in keep.iterdir()} == {"first", "second", "killed", "opened", "report.html"}
    assert Store(keep / "first").latest().step == 24
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "not empty" in again.stderr


def test_the_demo_ends_with_the_path_of_a_page_of_its_killed_run(tmp_path):
    """Behind the verdict, if the runs are kept; the page shows both kills."""
    done = subprocess.run(
        [*cli()[:-1], "demo", "--keep", "kept"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    verdict, page = done.stdout.splitlines()[-2:]
    assert verdict.startswith("identical: ")
    assert "report: kept/report.html" == page
    text = (tmp_path / "kept/report.html").read_text()
    assert 2 == text.count("<b style") - text.count(">done</b>") == text.count(">killed</b>")


def test_a_program_under_the_supervisor_is_refused_before_it_starts(tmp_path):
    """It has no states of a Run to compare: what to do instead is said in one line."""
    (tmp_path / "app.toml").write_text('start = ["{command}"]\ncheckpoint = ["state"]\n')
    supervised = [sys.executable, "-m", "holdfast", "run", "--app", "app.toml", "--", "touch", "started"]
    done = subprocess.run(cli("--", *supervised), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 8
    assert "a program under --app has none. Run it alone, then again through kills" in done.stderr
    assert ["app.toml"] == [path.name for path in tmp_path.iterdir()]


STAYS = """
import threading
from holdfast import Run
with Run("runs/x", {"seen": []}) as run:
    for step in run.steps(9):
        if step == 3:
            print("here", flush=True)
            threading.Event().wait()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_drill_leaves_no_process_and_no_directory(number, tmp_path):
    """Ctrl-C ends the command and tidies up."""
    (tmp_path / "train.py").write_text(STAYS)
    place = tmp_path / "temporary"
    place.mkdir()
    command = cli("--", sys.executable, str(tmp_path / "train.py"))
    environment = {**os.environ, "TMPDIR": str(place)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as drilling:
        while not (journal := [*place.glob("holdfast-drill-*/first/attempts/1/*.jsonl")]) or (
            journal[0].read_text().count('"digests"') < 3
        ):
            assert drilling.poll() is None
            time.sleep(0.01)
        pid = json.loads(journal[0].read_text().split("\n")[1])["owner"]["pid"]
        assert not is_gone(pid)
        drilling.send_signal(number)
        drilling.communicate()
    assert drilling.returncode in {130, 143}
    assert is_gone(pid)
    assert list(place.iterdir()) == []
