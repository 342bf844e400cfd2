"""Text that is not Unicode, from the command line, a path or a variable: a run with it saves, resumes and is shown."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from holdfast import Best, Last, Run, journal, legible
from holdfast.errors import UsageError
from holdfast.legible import duration, nth
from holdfast.provenance import document
from holdfast.store.store import ManifestFields, Store
from stores import invoke
from toy import Toy

BYTE = os.fsdecode(b"\xff")  # a lone surrogate
HALF = "\ud83d"  # another one: half of a pair, as broken JSON gives it


def shown(*words):
    told = invoke(*words, "--json")
    assert 0 == told.exit_code, told
    return json.loads(told.stdout)


# The rule ------------------------------------------------------------------------------------------------------------


def test_lone_surrogates_become_escapes_and_all_else_stays():
    same = {text: text for text in ("plain", "grüße 😀 \\xff", "")}
    for text, expected in {**same, f"a{BYTE}é": "a\\xffé", HALF: "\\ud83d"}.items():
        assert expected == legible.legible(text)
        assert (text == expected) == legible.is_text(text)


def test_values_of_any_depth_are_made_legible_and_no_key_is_lost():
    value = {"list": [f"{BYTE}", 1, None, True, 0.5], BYTE: {"b": (BYTE,)}, "\\xff": 2, "\\xff~": 3}
    expected = {"list": ["\\xff", 1, None, True, 0.5], "\\xff~~": {"b": ["\\xff"]}, "\\xff": 2, "\\xff~": 3}
    assert expected == msgspec.json.decode(legible.json_bytes(value))
    assert msgspec.json.encode({"é": [1]}) == legible.json_bytes({"é": [1]})


# Each place by itself -----------------------------------------------------------------------------------------------


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
    assert found.startswith(("[a dict without text: RecursionError]", "{'deeper': "))  # newer versions write the text
    assert depth in (32, 33)


def test_an_object_that_cannot_be_shown_is_marked():
    class Broken:
        def __str__(self):
            raise OSError("gone")

    given: dict[Any, Any] = {"data": Broken(), Broken(): 1}
    made = document(given)["hyperparameters"]
    mark = "without text: OSError]"
    assert mark in made["data"]
    assert any(mark in key for key in made)


def test_a_note_of_any_kind_is_kept_as_text(tmp_path):
    store = Store(tmp_path)
    store.save({}, step=1, facts=ManifestFields(note=Path("of/a/path")))
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
    told = invoke("ls", root)
    assert (3, True) == (told.exit_code, "\\udcff" in told.stderr), told


# Numbers ---------------------------------------------------------------------------------------------------------


def test_one_thing_is_not_told_as_many(tmp_path):
    """A number and its noun: also in what the commands print."""
    expected = ["0 files", "1 file", "2 files", "1,000 leaves", "1 leaf"]
    told = [legible.counted(number, "file") for number in (0, 1, 2)]
    assert expected == [*told, *(legible.counted(number, "leaf", "leaves") for number in (1000, 1))]
    Store(tmp_path / "run").save({"w": np.ones(3)}, step=1)
    file = tmp_path / "w.safetensors"
    exported = invoke("export", tmp_path / "run", "--all", "-o", file).stdout
    assert "1 tensor of step-000000001" in exported
    for path in (tmp_path / "run", file):
        assert "in 1 file, 1 leaf\n" in invoke("show", path).stdout


def test_a_time_is_in_the_largest_unit_of_which_it_has_two():
    """As people say them; two digits, and no more."""
    said = {
        0: "0 s",
        0.42: "0.42 s",
        50: "50 s",
        95.2: "95 s",
        119: "119 s",
        450: "7.5 min",
        7205: "2 h",
        259200: "3 days",
    }
    assert said == {seconds: duration(seconds) for seconds in said}
    assert ["", ""] == [duration(None), duration(-3)]


def test_a_place_is_counted_from_one_and_a_loop_without_end_has_no_total():
    """The total of such a loop is sys.maxsize, less its first pass."""
    assert ["1/4", "2", "2", "2"] == [nth(0, 4), nth(1), nth(1, sys.maxsize), nth(1, sys.maxsize - 1)]
