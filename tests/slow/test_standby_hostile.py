"""`holdfast run --standby` beside what people have on their machines: no second copy of a script ever runs."""

import os
import signal
import sys
import zipfile

import pytest

from supervised import Supervised, train, until

READY = "a standby has done the imports, and waits; it holds "
BEGINS = """
    with open("begun", "a") as file:
        file.write(f"{os.getpid()}\\n")
"""
TRAINS = """
    with new_run(RUN, toy, every=Every(steps=5), keep=Last(3)) as run:
        for step in run.steps(10**6):
            toy.learn(step)
            time.sleep(0.01)
            if os.path.exists("enough"):
                break
"""


@pytest.fixture
def packages(tmp_path):
    """A folder of installed packages."""
    place = tmp_path / "site-packages"
    place.mkdir()
    return place


def zipped(packages):
    with zipfile.ZipFile(packages / "mods.zip", "w") as file:
        file.writestr("zipped.py", "")
    return f"{packages}:{packages / 'mods.zip'}", "import zipped"


def own_hook(packages):
    (packages / "sitecustomize.py").write_text("raise KeyError('no such setting')\n")
    return str(packages), ""


def gone(packages):
    (packages / "loses.py").write_text("import os\nif os.path.exists('begun'):\n    os.remove(__file__)\n")
    return str(packages), "import loses"


def another_program(packages):
    """It starts Python once more, with a variable of its own, as some do for LD_LIBRARY_PATH."""
    (packages / "again.py").write_text(
        "import os, sys\nif 'AGAIN' not in os.environ and os.path.exists('begun'):\n"
        "    os.environ['AGAIN'] = '1'\n    os.execv(sys.executable, [sys.executable, *sys.argv])\n"
    )
    return str(packages), "import again"


@pytest.mark.parametrize("odd", [zipped, own_hook, gone, another_program], ids=lambda odd: odd.__name__)
def test_whatever_goes_wrong_in_a_standby_the_script_runs_once_at_a_time(tmp_path, packages, odd):
    """A module in an archive, a hook of the site that fails, a file that is gone: a cold start, with a line."""
    path, imports = odd(packages)
    command = train(tmp_path, f"    {imports}\n{BEGINS}\n{TRAINS}")
    with Supervised(tmp_path, command, "--standby", "--retries", 2, PYTHONPATH=path) as it:
        until(lambda: it.begun and it.events("standby"), "a standby")
        until(lambda: READY in it.said or it.events("standby_discarded"), "its imports, or its end")
        assert 1 == len((tmp_path / "begun").read_text().split())
        (tmp_path / "enough").touch()
        assert 0 == it.end(), it.said
    assert 1 == it.said.count("the standby is discarded: ")


def wrapped(place):
    """Sites have such commands, which bring their own paths."""
    (place / "python").write_text(f'#!/bin/sh\nexport PYTHONPATH={place}\nexec {sys.executable} "$@"\n')
    (place / "python").chmod(0o755)
    return ""


def cleaned(place):
    """Others unset what might lead Python astray."""
    (place / "python").write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} "$@"\n')
    (place / "python").chmod(0o755)
    return ""


def gone_meanwhile(place):
    """The environment is installed anew while the run is at work."""
    (place / "python").symlink_to(os.path.realpath(sys.executable))
    return f"    os.remove({str(place / 'python')!r})\n"


@pytest.mark.parametrize("odd", [wrapped, cleaned, gone_meanwhile], ids=lambda odd: odd.__name__)
def test_a_command_that_may_not_have_a_standby_goes_on_without_one(tmp_path, odd):
    """With a line."""
    variables = {} if odd is cleaned else {"PYTHONPATH": ":".join(sys.path)}
    script = train(tmp_path, f"{odd(tmp_path)}\n{BEGINS}\n{TRAINS}")[1]
    with Supervised(tmp_path, [tmp_path / "python", script], "--standby", **variables) as it:
        until(lambda: "train.py: no standby: " in it.said or it.process.poll() is not None, "the line")
        (tmp_path / "enough").touch()
        assert 0 == it.end(), it.said
    assert 1 == len((tmp_path / "begun").read_text().split())
    assert [] == it.events("standby")


SEES = {
    "beside": (
        "import importlib.util\nseen = importlib.util.find_spec('local') is not None\n",
        "open('local.py', 'w')",
    ),
    "folder": (
        "import os\nseen = os.path.basename(os.getcwd())\n",
        "os.makedirs('sub', exist_ok=True); os.chdir('sub')",
    ),
}


@pytest.mark.parametrize("what", SEES)
def test_an_import_sees_what_it_sees_in_a_cold_start(tmp_path, packages, what):
    """A module beside the script, and the folder to which the script goes before the import."""
    (packages / "odd.py").write_text(SEES[what][0])
    enough = TRAINS.replace('"enough"', repr(str(tmp_path / "enough")))
    command = train(tmp_path, f"    {SEES[what][1]}\n    import odd\n    print('sees', odd.seen, flush=True)\n{enough}")
    with Supervised(tmp_path, command, "--standby", "--retries", 2, PYTHONPATH=str(packages)) as it:
        until(lambda: READY in it.said or "the standby is discarded" in it.said, "its imports, or its end")
        it.strike(signal.SIGKILL)
        until(lambda: 2 == it.printed.count("sees"), "the second start")
        (tmp_path / "enough").touch()
        assert 0 == it.end(), it.said
    assert 1 == len(set(it.printed.splitlines()))
