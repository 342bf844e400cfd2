"""The corpus of batch scripts by which lint is judged: whole, and labelled in its table's words."""

import json
import re
import subprocess
from pathlib import Path

CORPUS = Path(__file__).parents[1] / "corpus" / "lint"
LABELS = json.loads((CORPUS / "labels.json").read_text())
WORDS = re.findall(r"^\| `([a-z-]+)` \|", (CORPUS / "README.md").read_text().partition("| fault |")[2], re.MULTILINE)
SEVERITIES = {"loses-work", "may-lose-work", "style"}
SHELL = re.compile(r"#!.*\b(bash|sh|ksh)\b")


def labels():
    return [(name, label) for name, entry in LABELS.items() for label in entry["labels"]]


def test_every_script_has_labels_and_every_label_a_script():
    assert sorted(path.name for path in CORPUS.glob("*.sh")) == sorted(LABELS)
    assert {name.rpartition("-")[0] for name in LABELS} == {entry["site"] for entry in LABELS.values()}


def test_labels_use_the_words_of_the_table_and_lines_that_exist():
    assert len(WORDS) == len(set(WORDS))
    assert {label["fault"] for _, label in labels()} == set(WORDS)
    for name, label in labels():
        lines = (CORPUS / name).read_text().splitlines()
        assert 0 <= label["line"] <= len(lines), (name, label)
        assert 0 == label["line"] or lines[label["line"] - 1].strip(), (name, label)
        assert label["severity"] in SEVERITIES, (name, label)
        assert set(label.get("also", ())) <= set(WORDS) - {label["fault"]}, (name, label)


def test_shell_scripts_of_the_corpus_parse():
    """As bash reads them: a script that does not parse would be judged for that alone."""
    scripts = [path for path in sorted(CORPUS.glob("*.sh")) if SHELL.match(path.read_text().partition("\n")[0])]
    assert len(scripts) > 200
    for path in scripts:
        parsed = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
        assert (0, "") == (parsed.returncode, parsed.stderr), path
