"""Fuzzing, guided by the coverage of our code: whatever a file holds, it is read, or refused by an error of ours.

Nothing outside changes, nothing is executed, and time and memory are bounded. tests/slow replays what was found.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fuzzed

TESTS = Path(__file__).parents[1]
CORPUS = TESTS / "corpus/hostile"
SECONDS = {"manifest": 120, "part": 90, "journal": 60, "shard": 60, "app": 60, "script": 60}
OTHERS_S = 40  # ten minutes in all
LEAST = 100  # so many inputs are tried on the busiest machine


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", fuzzed.TARGETS)
def test_no_file_makes_a_reader_do_anything_but_read_or_refuse(target, tmp_path, tally):
    """The fuzzer begins with the kept corpus, and finds no input that is a fault."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "found").mkdir()
    for path in (CORPUS / target).iterdir():
        (tmp_path / "corpus" / path.name).write_bytes(path.read_bytes())
    words = [target, tmp_path / "place", tmp_path / "corpus", SECONDS.get(target, OTHERS_S), 1, tmp_path / "found"]
    told = subprocess.run(
        [sys.executable, "fuzz_process.py", *map(str, words)],
        cwd=TESTS,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    tried, read = json.loads((tmp_path / "place/counts").read_text())
    found = [path.read_bytes()[:1000] for path in (tmp_path / "found").iterdir()]
    tally("A file is hostile, as a fuzzer makes it", tried=tried, survived=tried - bool(told.returncode))
    assert told.returncode == 0, f"{found}\n{told.stdout[-2000:]}\n{told.stderr[-4000:]}"
    assert tried >= LEAST
    assert read > 0
