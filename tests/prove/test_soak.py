"""What `make soak` counts and what it calls a failure."""

import pytest

import soak
from soak import Outcome


def test_a_kind_without_a_case_and_one_that_fails_are_failures(monkeypatch):
    """What was tried is counted, what was not is named, and no answer is a failure."""
    tried = {
        "good": lambda seed, count: [Outcome("a"), Outcome("b", tried=False)],
        "bad": lambda seed, count: [Outcome("c", "it broke")],
        "silent": lambda seed, count: [],
    }
    monkeypatch.setattr(soak, "kinds", lambda number: tried)
    *_, found = soak.soaked(0, 0, 1)
    assert found["kinds"] == {
        "good": {"cases": 1, "untried": ["b"], "failed": []},
        "bad": {"cases": 1, "untried": [], "failed": ["c: it broke"]},
        "silent": {"cases": 0, "untried": ["silent"], "failed": ["silent: no case ran"]},
    }
    assert "--count 1): 2 tests of tests/prove. Not tried: 2; failed: 2." in soak.line(found)


def test_a_word_that_no_kind_has_is_refused_at_once(monkeypatch, tmp_path, capsys):
    """Neither hours without a case, nor a result of nothing."""
    assert [*soak.soaked(0, 8, None, "no such kind")] == []
    monkeypatch.setattr("sys.argv", ["soak.py", "--only", "no such kind", "--out", str(tmp_path / "out.json")])
    with pytest.raises(SystemExit) as ended:
        soak.main()
    assert ended.value.code == 2
    assert "no kind has that" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_a_test_that_cannot_run_is_a_failure(monkeypatch, tmp_path):
    """One that is skipped, one that fails, and a file that does not even import: each says so."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_good(): pass\ndef test_bad(): assert 0\ndef test_not(): pytest.skip('none')\n"
    )
    (tmp_path / "test_broken.py").write_text("import nothing_of_that_name\n")
    monkeypatch.setattr(soak, "ROOT", tmp_path)
    found = {each.case.rpartition("::")[2]: each for each in soak.of_tests(tmp_path / "test_it.py", 0, None)}
    assert {name: (each.problem != "", each.tried) for name, each in found.items()} == {
        "test_good": (False, True),
        "test_bad": (True, True),
        "test_not": (False, False),
    }
    (tmp_path / "test_empty.py").write_text("")
    for name, answer in (("test_broken", (True, True)), ("test_none", (True, True)), ("test_empty", (False, False))):
        outcomes = list(soak.of_tests(tmp_path / f"{name}.py", 0, None))
        assert {(each.problem != "", each.tried) for each in outcomes} == {answer}, name
