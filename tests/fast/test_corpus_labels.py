"""The corpus of batch scripts by which lint is judged: whole, labelled in its table's words, half of it held out."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

CORPUS = Path(__file__).parents[1] / "corpus" / "lint"
LABELS = json.loads((CORPUS / "labels.json").read_text())
WORDS = re.findall(r"^\| `([a-z-]+)` \|", (CORPUS / "README.md").read_text().partition("| fault |")[2], re.MULTILINE)
SEVERITIES = {"loses-work", "may-lose-work", "style"}
SHELL = re.compile(r"#!.*\b(bash|sh|ksh)\b")


def labels():
    return [(name, label) for name, entry in LABELS.items() for label in entry["labels"]]


def right(entry):
    return all(label.get("doubtful") for label in entry["labels"])


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


def test_half_of_each_site_is_held_out_and_half_of_the_right_ones():
    assert len(LABELS) >= 160
    assert sum(map(right, LABELS.values())) >= 45
    held = [entry for entry in LABELS.values() if entry["held_out"]]
    assert abs(2 * len(held) - len(LABELS)) <= 2
    assert abs(2 * sum(map(right, held)) - sum(map(right, LABELS.values()))) <= 2
    sites, drawn = (Counter(entry["site"] for entry in group) for group in (LABELS.values(), held))
    assert len(sites) >= 16
    assert all(abs(2 * drawn[site] - sites[site]) <= 2 for site in sites)


def test_shell_scripts_of_the_corpus_parse():
    """As bash reads them: a script that does not parse would be judged for that alone."""
    scripts = [path for path in sorted(CORPUS.glob("*.sh")) if SHELL.match(path.read_text().partition("\n")[0])]
    assert len(scripts) > 200
    for path in scripts:
        parsed = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
        assert (0, "") == (parsed.returncode, parsed.stderr), path
