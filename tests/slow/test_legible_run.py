"""A run whose every text is not UTF-8, as a process of its own and under the supervisor."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.cluster import job_leader
from stores import invoke
from toy import events

BYTE = os.fsdecode(b"\xff")  # a lone surrogate


def told(*words):
    result = invoke(*words)
    assert 0 == result.exit_code, result
    return result.stdout


def shown(*words):
    return json.loads(told(*words, "--json"))


# A whole run --------------------------------------------------------------------------------------------------------

SCRIPT = """
    import os, random, signal, sys
    sys.path.insert(0, TESTS)
    os.fsync = lambda descriptor: None
    from toy import Toy
    from holdfast import Best, Every, Last, Run

    random.seed(1)
    odd = sys.argv[1]
    class Odd(Toy):
        def state_dict(self):
            return {odd: self.value, "named": {odd: b"x" * 2000}}

        def load_state_dict(self, state):
            self.value = state[odd]

    state = {"odd": Odd(), "toy": Toy()}
    options = dict(note=odd, dataset=odd, hyperparameters={odd: [odd, {"deep": odd}]}, vars={"odd": {odd: odd}})
    options["keep"] = Last(2) | Best(odd, max)
    options |= {"every": Every(steps=1), "tracker": lambda known, step: known or "id"}
    with Run(os.environ["PLACE"], state, **options) as run:
        assert odd == run.vars.odd[odd]
        for epoch in run.epochs(2):
            for batch in run.batches([1, 2], name=odd):
                state['odd'].learn(batch)
                run.log(**{odd: batch, "loss": 1})
                if run.step == 0 and len(sys.argv) > 2:
                    os.kill(os.getpid(), signal.SIGTERM)
    print(state['odd'].value)
"""


def start(script, place, *words, **environment):
    named = {"PLACE": place, "USER": b"\xff", "LOGNAME": b"\xff", **environment}
    done = subprocess.run(
        [sys.executable, *map(os.fsencode, [script, *words])],
        env={**{os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}}
        | {os.fsencode(name): os.fsencode(value) for name, value in named.items()},
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")
    return done


LOCALES = {"as it is": {}, "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}}


@pytest.mark.parametrize("locale", LOCALES)
def test_a_run_whose_every_text_is_not_utf_8_saves_stops_and_resumes_and_is_shown(locale, tmp_path):
    """The argument, the user's name, the path, note, dataset, hyperparameters,
    names of metrics, keys in state and variables."""
    script, place = tmp_path / "train.py", tmp_path / f"run {BYTE} é"
    script.write_text(textwrap.dedent(SCRIPT).replace("TESTS", repr(str(Path(__file__).parents[1]))))
    stopped = start(script, place, BYTE, "stop", **LOCALES[locale])
    assert 75 == stopped.returncode, stopped
    resumed = start(script, place, BYTE, **LOCALES[locale])
    assert (0, True) == (resumed.returncode, b"resumes at step 1" in resumed.stderr), resumed
    whole = start(script, tmp_path / "whole", BYTE, **LOCALES[locale])
    assert whole.stdout == resumed.stdout

    newest = shown("show", place)
    assert "\\xff" == newest["note"] == newest["document"]["dataset"]
    assert {"\\xff": ["\\xff", {"deep": "\\xff"}]} == newest["document"]["hyperparameters"]
    assert "\\xff" in newest["document"]["command"]
    assert {"\\xff": 2.0, "loss": 1.0} == shown("show", place, "--step", "best")["metrics"]
    assert 4 == len(told("show", place, "--metrics", "--json").splitlines())
    assert "step-000000002" in told("ls", place)
    assert any(each["metrics"] == {"\\xff": 2.0, "loss": 1.0} for each in shown("ls", place)["checkpoints"])
    assert shown("verify", place)
    assert "\\xff" == json.loads((place / "run.json").read_bytes())["by"]["user"]
    for words in (
        ["diff", place, place],
        ["verify", place],
        ["pin", place, "--step", "best"],
        ["show", place, "--metrics"],
    ):
        assert told(*words)
    assert "xff" in told("show", place)


def test_the_supervisor_runs_a_command_that_is_not_utf_8(tmp_path):
    """It starts it again after the stop, and finds its run."""
    script, place = tmp_path / "train.py", tmp_path / f"run{BYTE}"
    script.write_text(textwrap.dedent(SCRIPT).replace("TESTS", repr(str(Path(__file__).parents[1]))))
    home = tmp_path / f"home{BYTE}"
    words = ["holdfast", "run", "--run", home, "--", sys.executable, script, BYTE, "stop"]
    done = start("-m", place, *words)
    assert 0 == done.returncode, done
    assert 4 == events(place, "metrics")[-1]["step"]
    assert place == job_leader.reported_run_path(home)
