"""The scripts in tools count what they say they count: each is asked about a small input whose figures are known."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.append(str(TOOLS))

import mutations  # noqa: E402
import quality  # noqa: E402
import reach  # noqa: E402
import walks  # noqa: E402
import weight  # noqa: E402


def written(folder, **files):
    """A package with these modules; `__` in a name stands for a slash."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_token_is_neither_comment_nor_layout():
    """`x`, `=`, `1`; then `def`, `f`, `(`, `)`, `:`, and a docstring, which is one token."""
    assert 3 == weight.tokens("x = 1  # a comment\n\n# another\n")
    assert 3 == weight.tokens("x = f'{a + 1} b {f(c)!r:>{d}} {f\"{e}\"}'\n")
    assert 6 == weight.tokens('def f():\n    """Docstring of three words."""\n')


def test_the_figures_of_a_folder(tmp_path):
    a = 'from . import b\nfrom .c import d\nimport os\nclass Twice:\n  def f(self):\n    """One.\n\n    Three."""\n'
    b = "class Twice: pass\n" + "#" * 111 + "\n" + "#" * 121 + "\n"
    found = weight.weigh(written(tmp_path, a=a, b=b, c__d="x = 1\n", c__e="from .. import a\n" + "\n" * 60))
    assert (4, 3, 2, 1) == (found.files, found.files_under_50_lines, found.lines_over_110, found.lines_over_120)
    assert (1, 3, 3.0) == (found.functions, found.docstring_lines, found.docstring_lines_per_function)
    assert (0.75, 2, "a.py") == (found.imports_mean, found.imports_max, found.imports_most)
    assert {"Twice": 2} == found.class_names_repeated


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("One line\ngoes on. A second one? `a.b. c` is a word!", [4, 3, 4]),
        ("# A heading\nA line below it", [2, 4]),
        ("- an item\n  goes on\n- another item", [4, 2]),
        ("| a b | c |\n|---|---|\n| d e f. g | h |", [2, 1, 3, 1, 1]),
        ("Before.\n\n```\nnot. counted\n```\n\n    nor this\n\nAfter [a link](https://example.org/x.y) it.", [1, 4]),
        (" ".join(["word"] * 31) + ". " + " ".join(["word"] * 30) + ".", [31, 30]),
    ],
)
def test_a_sentence_ends_at_its_stop_or_with_its_block(markdown, expected):
    assert expected == [weight.words(each) for each in weight.sentences(markdown)]


def test_sentences_over_30_words_are_those_of_readme_and_docs(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(" ".join(["word"] * 31) + ".\n")
    (tmp_path / "docs" / "a.md").write_text(" ".join(["word"] * 30) + ".\n\nShort.\n")
    found = weight.read(tmp_path)
    assert (62, 3, 1) == (found.words, found.sentences, found.over_30_words)


def test_a_checkout_is_weighed_as_json(tmp_path):
    written(tmp_path / "src" / "holdfast", a="x = 1\n")
    written(tmp_path / "tests", test_a="def test_a(): assert 1\n")
    (tmp_path / "README.md").write_text("One sentence.\n")
    command = [sys.executable, TOOLS / "weight.py", tmp_path, "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (3, 7, 1) == (found["src"]["tokens"], found["tests"]["tokens"], found["text"]["sentences"])


def test_a_folder_that_is_no_checkout_is_refused_in_one_line(tmp_path):
    for name in ("weight.py", "walks.py"):
        said = subprocess.run([sys.executable, TOOLS / name, tmp_path], capture_output=True, text=True, check=False)
        assert (2, name, True) == (said.returncode, name, "has no src/holdfast" in said.stderr.splitlines()[-1])


def traced(folder, script):
    """What the tracer of walks counts while `script` runs on the package in `folder`."""
    code = f"""
import sys, json
from pathlib import Path
sys.path[:0] = [{str(TOOLS)!r}, {str(folder.parent)!r}]
import threading
from walks import Tracer
tracer = Tracer(Path({str(folder)!r}))
tracer.install()
tracer.active = True
{script}
tracer.active = False
print(json.dumps(tracer.result()))
"""
    return json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def test_a_move_is_a_call_from_one_room_into_another(tmp_path):
    """Not one within a room, of the script or of a module's body; one through the standard library, or in a thread."""
    folder = written(
        tmp_path / "house",
        __init__="",
        a__door="from functools import reduce\nfrom . import inner\nfrom .. import b\n"
        "def go():\n    inner.same()\n    b.one()\n    return reduce(b.add, [1, 2, 3])\n",
        a__inner="def same(): pass\n",
        a____init__="",
        b="from . import c\nc.at_import()\ndef one(): c.two()\ndef add(x, y): return x + y\n",
        c="def at_import(): pass\ndef two(): pass\n",
    )
    found = traced(folder, "from house.a import door\ndoor.go()")
    assert ["a/door.py", "a/inner.py", "b.py", "c.py"] == found["files"]
    assert [["a", "b", 3], ["b", "c", 1]] == found["moves"]
    assert {("a/door.py", "a/inner.py", 1)} == {tuple(each) for each in found["file_moves"]} - {
        ("a/door.py", "b.py", 3),
        ("b.py", "c.py", 1),
    }
    assert "    script: a\n    a: b\n    b: c" == walks.draw(found)
    again = traced(folder, "from house.a import door\nt = threading.Thread(target=door.go)\nt.start()\nt.join()")
    assert found["moves"] == again["moves"]


def changed(source):
    """Operator and changed text of all mutants of a module."""
    return [
        (each.key.operator, each.apply(source.encode()).decode())
        for each in mutations.mutants_of("m.py", source.encode())
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if a:\n    b = c\n", [("negate", "if (not (a)):\n    b = c\n")]),
        ("x = a < b\n", [("compare", "x = (a <= b)\n")]),
        ("if a == b:\n    c\n", [("compare", "if (a != b):\n    c\n")]),
        ("x = y[7]\n", [("number", "x = y[8]\n")]),
        ("f(x)\n", [("drop", "pass\n")]),
        ("def f():\n    return g()\n", [("return", "def f():\n    return None\n")]),
        ("x = a and b\n", [("and-or", "x = ((a) or (b))\n")]),
        ("x = not a\n", [("not", "x = (a)\n")]),
        ("x = a + b\n", [("plus-minus", "x = (a - (b))\n")]),
        ("x += y\n", [("plus-minus", "x -= y\n")]),
        ("x = f(deep=True)\n", [("flip", "x = f(deep=False)\n")]),
        ("raise Wrong(3 + 4)\n", [("drop", "pass\n")]),
        ('x = "ä" if a else b\n', [("negate", 'x = "ä" if (not (a)) else b\n')]),
        ('"""Text."""\nx: Annotated[int, 3] = y\nsay("text")\nif TYPE_CHECKING:\n    f(1)\nz = f"{a + 1}" + "b"\n', []),
    ],
)
def test_each_operator_changes_just_this(source, expected):
    assert expected == changed(source)


def test_a_mutant_is_found_again_where_lines_moved_and_a_file_was_renamed():
    """The second of two equal changes stays the second; one that is gone is not taken for another."""
    before = {each.key: each for each in mutations.mutants_of("old.py", b"def f():\n    g(1)\n    g(1)\n    h(x)\n")}
    after = {each.key: each for each in mutations.mutants_of("new.py", b"\n\ndef f():\n    g(1)\n    g(1)\n    k(x)\n")}
    second = next(each for each in before if (each.operator, each.nth) == ("drop", 1))
    gone = next(each for each in before if each.source == "h(x)")
    found = mutations.match(second, after, {"old.py": "new.py"})
    assert found is not None
    assert ("new.py", 1, 5) == (found.file, found.nth, after[found].line)
    assert mutations.match(gone, after, {"old.py": "new.py"}) is None


def test_a_sample_has_each_rooms_share_also_in_its_beginning():
    many = [each for name, n in (("a", 300), ("b", 100)) for each in mutations.mutants_of(f"{name}.py", b"f(1)\n" * n)]
    assert 800 == len(many)
    chosen = mutations.sample(many, 40, seed=1)
    assert chosen == mutations.sample(many, 40, seed=1) != mutations.sample(many, 40, seed=2)
    assert 40 == len({each.key for each in chosen})
    for part, expected in ((40, 30), (20, 15)):
        assert abs(sum(each.key.file == "a.py" for each in chosen[:part]) - expected) <= 1


def figures(**outcomes):
    """What `quality.py collect` writes, of a tree with one room and these mutants."""
    side = asdict(weight.Weight(tokens=10, files=1))
    room = {"covered_lines": 3, "num_statements": 4, "covered_branches": 1, "num_branches": 2}
    return {
        "weight": {"src": side, "tests": side},
        "text": {"sentences": 5, "over_30_words": 2},
        "walks": {"show": {"files": ["a.py", "b.py"], "rooms": {"a": ""}, "moves": [["a", "b", 4]], "file_moves": 6}},
        "tests": {"collected": 3, "measured": 2, "functions": 1, "cpu_s": 0.5},
        "possible_mutants": {"a": 9},
        "coverage": {"a": room},
        "mutants": [
            {
                "key": ["a.py", name, "drop", f"{name}()", 0],
                "line": 1,
                "becomes": "pass",
                "outcome": outcome,
                "ran": 1,
                "reached": 2,
            }
            for name, outcome in outcomes.items()
        ],
    }


def test_the_page_sets_before_beside_after_and_lists_what_lives():
    before, after = (
        figures(f="killed", g="killed", h="survived", k="killed"),
        figures(f="killed", g="survived", h="killed"),
    )
    page = quality.page(before, after, {}, "# Words").splitlines()
    assert "| mutants: killed | 3 of 4 | 2 of 3 |" in page
    assert "| branches covered | 50.0% | 50.0% |" in page
    assert "| walk show: files, rooms, moves between rooms, moves between files | 2, 1, 4, 6 | 2, 1, 4, 6 |" in page
    assert ["| `a` | 9 | 3 | 1 | 0 | 0 | 0 | 75.0% | 50.0% |", "| `a` | 9 | 2 | 1 | 0 | 0 | 0 | 75.0% | 50.0% |"] == [
        line for line in page if line.startswith("| `a` |")
    ]
    assert "- a.py:1 h, 1 of 2 tests: `drop: h() -> pass`" in page
    assert ["- `a.py g: drop: g()`: survived", "- `a.py k: drop: k()`: gone"] == page[-2:]


def test_figures_are_written_with_one_mutant_on_a_line():
    facts = figures(f="killed", g="survived")
    assert facts == json.loads(quality.dumped(facts))
    assert 2 == sum('"outcome"' in line for line in quality.dumped(facts).splitlines())


def test_a_test_has_passed_only_if_its_call_passed(tmp_path):
    """A failed teardown is a failure; a test that was skipped has not passed."""

    class NoCoverage:
        def start(self): ...

    reach_new, reach.new_coverage = reach.new_coverage, lambda *_: NoCoverage()
    try:
        recorder = reach.Recorder("src", "data", str(tmp_path / "facts"))
    finally:
        reach.new_coverage = reach_new
    said = {
        "good": ("passed",) * 3,
        "bad": ("passed", "failed"),
        "skipped": ("skipped",),
        "left": ("passed", "passed", "failed"),
    }
    for name, outcomes in said.items():
        for when, outcome in zip(("setup", "call", "teardown"), outcomes, strict=False):
            recorder.pytest_runtest_logreport(pytest.TestReport(name, ("", 0, ""), {}, outcome, None, when))
    found = {name: recorder._outcome(name) for name in said}
    assert {"good": "passed", "bad": "failed", "skipped": "skipped", "left": "failed"} == found
