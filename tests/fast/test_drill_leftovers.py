"""Files that one run of a drill writes and another one reads: named, with the lines of the script."""

import json
import os
import subprocess
import sys
import time

import pytest

from holdfast.drill import leftovers
from holdfast.drill.leftovers import Leftover


def listen(place, program, began_ns):
    """Run the program as a process of the second run; what was noted."""
    wishes = {"opened": str(place / "opened" / "second.jsonl"), "since_ns": [began_ns, time.time_ns()]}
    leftovers.prepare_file_log(place, "first", began_ns)
    leftovers.prepare_file_log(place, "second", time.time_ns())
    path = place.parent / "train.py"
    path.write_text(f"import holdfast, os\n{program}\n")
    environment = {**os.environ, "HOLDFAST_DRILL": json.dumps(wishes)}
    subprocess.run([sys.executable, str(path)], env=environment, cwd=place.parent, check=True)
    return leftovers.find_leftovers(place)


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
    (found,) = listen(place, "open('snapshot.pt').read()\nopen('snapshot.pt').read()", began_ns)
    assert found == Leftover(str(place.parent / "snapshot.pt"), "first", "", "second", "train.py:2")
    assert "snapshot.pt, which undisturbed run 1 wrote and undisturbed run 2 read at train.py:2" in str(found)


INNOCENT = """
open("own.txt", "w").write("x"); open("own.txt").read()  # its own
open("old.txt").read()  # from before the drill
open("made.txt", "w").close(); open("made.txt").read()  # written anew before it is read
open("added.txt", "a").close()  # never read
os.open("data.lock", os.O_RDWR)  # a lock
os.makedirs(".cache/x", exist_ok=True); open(".cache/x/y").read()
open("drill/first").read()  # the drill's runs
import subprocess
"""


def test_what_a_run_wrote_itself_found_before_or_has_cached_is_no_leftover(place):
    """Only a file of another run is."""
    (place.parent / "old.txt").write_text("x")
    between()
    began_ns = time.time_ns()
    between()
    (place.parent / ".cache" / "x").mkdir(parents=True)
    for name in ("made.txt", "added.txt", ".cache/x/y", "drill/first", "left.txt"):
        (place.parent / name).write_text("x")
    (place.parent / "data.lock").touch()
    between()
    found = listen(place, INNOCENT + 'open("left.txt").read()', began_ns)
    assert [each.path for each in found] == [str(place.parent / "left.txt")]


def test_a_torn_line_is_passed_over(place):
    """A kill may come while a line is written."""
    leftovers.prepare_file_log(place, "first", 1)
    with (place / "opened" / "first.jsonl").open("a") as file:
        file.write('{"wrote": "/x", "at"')
    assert leftovers.find_leftovers(place) == []


def test_nobody_listens_outside_of_a_drill():
    """`import holdfast` installs nothing."""
    program = "import sys; sys.addaudithook = lambda hook: sys.exit('listens'); import holdfast"
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_DRILL"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
