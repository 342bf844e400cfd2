"""Files that one run of a drill writes and another one reads: named, with the lines of the script."""

import json
import os
import subprocess
import sys
import time

import pytest
from test_drill import quiet
from test_drill_places import script

from holdfast import drill
from holdfast.drill import leftovers, report, table
from holdfast.drill.aim import Options
from holdfast.drill.leftovers import Leftover

KILL = Options(kills=1, signals=("KILL",), damage=False)


def listen(place, program, *, began_ns, run="second"):
    """Run the program as a process of that run; what was noted."""
    wishes = {"opened": str(place / "opened" / f"{run}.jsonl"), "since_ns": [began_ns, time.time_ns()]}
    leftovers.prepare(place, "first", began_ns)
    leftovers.prepare(place, run, time.time_ns())
    path = place.parent / "train.py"
    path.write_text(f"import holdfast, os\n{program}\n")
    environment = {**os.environ, "HOLDFAST_DRILL": json.dumps(wishes)}
    subprocess.run([sys.executable, str(path)], env=environment, cwd=place.parent, check=True)
    return leftovers.found(place)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "drill").mkdir()
    return tmp_path / "drill"


def between():
    time.sleep(0.02)  # files are stamped by a clock that ticks each 4 ms


def test_a_file_of_another_run_is_named_with_the_line_that_reads_it(place):
    """Whoever wrote it: its own time tells in which run that was."""
    began_ns = time.time_ns()
    between()
    (place.parent / "snapshot.pt").write_text("x")
    between()
    (found,) = listen(place, "open('snapshot.pt').read()\nopen('snapshot.pt').read()", began_ns=began_ns)
    assert found == Leftover(str(place.parent / "snapshot.pt"), "first", "", "second", "train.py:2")
    assert "snapshot.pt, which undisturbed run 1 wrote and undisturbed run 2 read at train.py:2" in str(found)


@pytest.mark.parametrize(
    "program",
    [
        "open('own.txt', 'w').write('x'); open('own.txt').read()",  # its own
        "open('old.txt').read()",  # from before the drill
        "open('made.txt', 'w').close(); open('made.txt').read()",  # written anew before it is read
        "open('made.txt', 'a').close()",  # never read
        "os.makedirs('.cache/x', exist_ok=True); open('.cache/x/y').read()",
        "open('drill/first').read()",  # the drill's runs
        "import subprocess",
    ],
)
def test_what_a_run_wrote_itself_found_before_or_has_cached_is_no_leftover(place, program):
    """Only a file of another run is."""
    (place.parent / "old.txt").write_text("x")
    between()
    began_ns = time.time_ns()
    between()
    (place.parent / ".cache" / "x").mkdir(parents=True)
    for path in (place.parent / "made.txt", place.parent / ".cache" / "x" / "y", place / "first"):
        path.write_text("x")
    between()
    assert listen(place, program, began_ns=began_ns) == []


def test_a_torn_line_is_passed_over(place):
    """A kill may come while a line is written."""
    leftovers.prepare(place, "first", 1)
    with (place / "opened" / "first.jsonl").open("a") as file:
        file.write('{"wrote": "/x", "at"')
    assert leftovers.found(place) == []


def test_nobody_listens_outside_of_a_drill():
    """`import holdfast` installs nothing."""
    program = "import sys; sys.addaudithook = lambda hook: sys.exit('listens'); import holdfast"
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_DRILL"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


@pytest.mark.slow
@pytest.mark.drill
def test_a_snapshot_from_which_the_second_run_goes_on_is_the_cause(tmp_path):
    """The script's own resume: the second run begins with what the first one left."""
    snapshot = tmp_path / "snapshot.json"
    lines = (
        "import json, os",
        f"if os.path.exists({str(snapshot)!r}):",
        f"    toy.value = json.load(open({str(snapshot)!r}))",
        "for step in run.steps(9):",
        "    toy.learn(step)",
        f"json.dump(toy.value, open({str(snapshot)!r}, 'w'))",
    )
    found = drill.drill(script(tmp_path, *lines), KILL, quiet)
    assert (found.verdict, found.divergence.cause) == (report.NOT_DETERMINISTIC, "leftover file")
    assert found.leftovers == [Leftover(str(snapshot), "first", "train.py:12", "second", "train.py:9")]
    assert f"{snapshot}, which undisturbed run 1 wrote at train.py:12" in found.divergence.advice
    shown = "\n".join(table.lines(found))
    assert "usual cause (leftover file)" in shown
    assert "what to switch on" not in shown


@pytest.mark.slow
@pytest.mark.drill
def test_a_file_that_changes_nothing_is_noted_and_an_own_file_of_the_killed_run_is_not(tmp_path):
    """Attempts of one run share everything."""
    shared, own = tmp_path / "data.txt", tmp_path / "own.txt"
    lines = (
        "import os",
        f"if not os.path.exists({str(shared)!r}):",
        f"    open({str(shared)!r}, 'w').write('downloaded')",
        f"open({str(shared)!r}).read()",
        f"open({str(own)!r}, 'w' if run.step == 0 else 'r').close()",
        "for step in run.steps(9):",
        "    toy.learn(step)",
    )
    found = drill.drill(script(tmp_path, *lines), KILL, quiet)
    assert found.verdict == report.IDENTICAL
    assert {(each.path, each.reader) for each in found.leftovers} == {(str(shared), "second"), (str(shared), "killed")}
