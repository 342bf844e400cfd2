"""Text that is not Unicode, from the command line, a path or a variable: a run with it saves, resumes and is shown."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from holdfast import Best, Last, Run, journal, legible
from holdfast.cli import commands
from holdfast.cluster import job_leader
from holdfast.errors import UsageError
from holdfast.provenance import document
from holdfast.store.store import Facts, Store
from toy import Toy, events

BYTE = os.fsdecode(b"\xff")  # a lone surrogate
HALF = "\ud83d"  # another one: half of a pair, as broken JSON gives it


def invoke(*words):
    told = CliRunner().invoke(commands, list(map(str, words)))
    assert 0 == told.exit_code, told
    return told.stdout


def shown(*words):
    return json.loads(invoke(*words, "--json"))


# The rule ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("plain", "plain"), ("grüße 😀 \\xff", "grüße 😀 \\xff"), (f"a{BYTE}é", "a\\xffé"), (HALF, "\\ud83d"), ("", "")],
)
def test_lone_surrogates_become_escapes_and_all_else_stays(text, expected):
    assert expected == legible.legible(text)
    assert (text == expected) == legible.is_text(text)


def test_values_of_any_depth_are_made_legible_and_no_key_is_lost():
    value = {"list": [f"{BYTE}", 1, None, True, 0.5], BYTE: {"b": (BYTE,)}, "\\xff": 2, "\\xff~": 3}
    expected = {"list": ["\\xff", 1, None, True, 0.5], "\\xff~~": {"b": ["\\xff"]}, "\\xff": 2, "\\xff~": 3}
    assert expected == msgspec.json.decode(legible.json_bytes(value))
    assert msgspec.json.encode({"é": [1]}) == legible.json_bytes({"é": [1]})


# A whole run -----------------------------------------------------------------------------------------------------------

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
    with Run(os.environ["PLACE"], state, every=Every(steps=1), tracker=lambda known, step: known or "id", **options) as run:
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


@pytest.mark.slow
@pytest.mark.parametrize("locale", LOCALES)
def test_a_run_whose_every_text_is_not_utf_8_saves_stops_and_resumes_and_is_shown(locale, tmp_path):
    """The argument, the user's name, the path, note, dataset, hyperparameters, names of metrics, keys in state and variables."""
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
    assert 4 == len(invoke("show", place, "--metrics", "--json").splitlines())
    assert "step-000000002" in invoke("ls", place)
    assert any(each["metrics"] == {"\\xff": 2.0, "loss": 1.0} for each in shown("ls", place)["checkpoints"])
    assert shown("verify", place)
    assert "\\xff" == json.loads((place / "run.json").read_bytes())["by"]["user"]
    for words in (
        ["diff", place, place],
        ["verify", place],
        ["pin", place, "--step", "best"],
        ["show", place, "--metrics"],
    ):
        assert invoke(*words)
    assert "xff" in invoke("show", place)


@pytest.mark.slow
def test_the_supervisor_runs_a_command_that_is_not_utf_8(tmp_path):
    """It starts it again after the stop, and finds its run."""
    script, place = tmp_path / "train.py", tmp_path / f"run{BYTE}"
    script.write_text(textwrap.dedent(SCRIPT).replace("TESTS", repr(str(Path(__file__).parents[1]))))
    home = tmp_path / f"home{BYTE}"
    words = ["holdfast", "run", "--run", home, "--", sys.executable, script, BYTE, "stop"]
    done = start("-m", place, *words)
    assert 0 == done.returncode, done
    assert 4 == events(place, "metrics")[-1]["step"]
    assert place == job_leader.run_of(home)


# Each place by itself ------------------------------------------------------------------------------------------------------


def test_a_state_keeps_the_exact_text(tmp_path):
    """Also where it is a key; only what people read is spelled with escapes."""
    state = {BYTE: {HALF: b"1" * 2000, "plain": BYTE}, "path": Path(BYTE), (BYTE, 1): {HALF}}
    store = Store(tmp_path)
    store.save(state, step=1, metrics={BYTE: 1.0}, note=HALF)
    assert state == store.load()
    assert ({"\\xff": 1.0}, "\\ud83d") == (store[1].metrics, store[1].head.note)
    assert [] == list(store[1].problems())


def test_best_finds_a_metric_by_the_name_that_the_loop_uses(tmp_path):
    store = Store(tmp_path, keep=Last(1) | Best(BYTE, max))
    for step, value in enumerate([1, 3, 2]):
        store.save({"w": step}, step=step, metrics={BYTE: value})
    assert [1, 2] == [checkpoint.step for checkpoint in store.checkpoints()]
    assert 1 == store.best().step
    assert 1 == shown("show", tmp_path, "--step", "best")["step"]


@pytest.mark.parametrize("name", ["dataset", "hyperparameters"])
def test_what_is_nested_beyond_all_depth_is_cut_with_a_mark(name, tmp_path):
    """What lies below 32 containers becomes text, and a mark where Python has none: a run is never lost for it."""
    deep = {}
    for _ in range(2000):
        deep = {"deeper": deep}
    with Run(tmp_path / "run", {"toy": Toy()}, **{name: {"lr": 0.1, "deep": deep}}) as run:
        for _ in run.steps(1):
            pass
    found = Store(tmp_path / "run").latest().document[name]
    assert 0.1 == found["lr"]
    depth = 0
    while isinstance(found, dict):
        found, depth = next(iter(reversed(found.values()))), depth + 1
    assert "[a dict without text: RecursionError]" == found
    assert depth in (32, 33)


def test_an_object_that_cannot_be_shown_is_marked():
    class Broken:
        def __str__(self):
            raise OSError("gone")

    made = document({"data": Broken(), Broken(): 1})["hyperparameters"]
    mark = "without text: OSError]"
    assert mark in made["data"]
    assert any(mark in key for key in made)


def test_a_note_of_any_kind_is_kept_as_text(tmp_path):
    store = Store(tmp_path)
    store.save({}, step=1, facts=Facts(note=Path("of/a/path")))
    assert "of/a/path" == Store(tmp_path).latest().head.note


def test_a_name_in_state_that_is_no_text_is_refused():
    """The tree of a run names its objects as plain text."""
    with pytest.raises(UsageError, match=r"state has the name .*which is no text"):
        Run("runs/x", {BYTE: Toy()})
    with pytest.raises(UsageError, match="vars cannot hold"):
        Run("runs/x", {"toy": Toy()}, vars={BYTE: 1})


def test_a_journal_holds_any_text(tmp_path):
    path = tmp_path / "attempt-1.jsonl"
    path.write_bytes(b"")
    journal.append(path, [{"event": "told", "what": f"{BYTE} in {HALF}", BYTE: 1}])
    assert [("\\xff in \\ud83d", 1)] == [(event["what"], event["\\xff"]) for event in journal.read(path)]


def test_a_tracker_whose_id_is_no_text_is_refused(tmp_path):
    """The next attempt could not give it back exactly."""
    with pytest.raises(UsageError, match="tracker returned the id"):
        Run(tmp_path / "run", {"toy": Toy()}, tracker=lambda known, step: BYTE).__enter__()


def test_a_file_whose_name_is_no_text_is_refused(tmp_path):
    """Readers find it by its name."""

    def commit():
        with Store(tmp_path / "run").directory(step=1) as path:
            (path / BYTE).write_bytes(b"data")

    with pytest.raises(UsageError, match="has a name in UTF-8"):
        commit()


def test_a_member_whose_name_is_no_text_is_refused(tmp_path):
    from collections import OrderedDict

    odd = OrderedDict(a=1)
    setattr(odd, BYTE, 1)
    with pytest.raises(UsageError, match="name that is no text"):
        Store(tmp_path).save({"odd": odd}, step=1)


def test_an_error_in_an_odd_place_is_told(tmp_path):
    root = tmp_path / f"run{BYTE}"
    root.mkdir()
    told = CliRunner().invoke(commands, ["ls", str(root)])
    assert (3, True) == (told.exit_code, "\\udcff" in told.stderr), told
