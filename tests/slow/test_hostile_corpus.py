"""The kept corpus of hostile files, replayed: what fuzzers and mutations found, and the valid files they began with."""

import json
import os
import resource
import signal
from pathlib import Path

import pytest

import fuzzed
from stores import in_a_child

CORPUS = Path(__file__).parents[1] / "corpus/hostile"
PATIENCE_S = 60  # for one file; each takes milliseconds
ROOM_BYTES = 1 << 30  # that reading one may take


@pytest.mark.parametrize("target", fuzzed.TARGETS)
def test_the_kept_files_are_read_or_refused(target, tmp_path):
    """No other exception, no change outside, nothing executed; within a minute and a gibibyte."""
    files = sorted((CORPUS / target).iterdir())
    assert files

    def law():
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, used + ROOM_BYTES))
        answers = []
        for path in files:
            signal.alarm(PATIENCE_S)
            answers.append(fuzzed.answered(target, path.read_bytes(), tmp_path / "store"))
        (tmp_path / "answers").write_text(json.dumps(answers))

    assert in_a_child(law) == 0
    assert any(json.loads((tmp_path / "answers").read_text()))  # the valid ones are read


def test_the_corpus_is_small():
    """It lies in every clone."""
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 1 << 20


MISDEEDS = {
    "writes": lambda outside: (outside / "new").write_bytes(b""),
    "renames": lambda outside: os.rename(outside / "there", outside / "gone"),
    "links": lambda outside: os.symlink("there", outside / "link"),
    "removes": lambda outside: os.remove(outside / "there"),
    "starts": lambda outside: os.system("true"),
    "executes": lambda outside: exec(compile("1", "a file", "exec")),
    "imports": lambda outside: __import__("antigravity_of_theirs"),
}


@pytest.mark.parametrize("deed", MISDEEDS)
def test_a_misdeed_is_seen(deed, tmp_path):
    """The watch over the readers can fail."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/there").write_bytes(b"")

    def law():
        with pytest.raises(fuzzed.Misdeed), fuzzed.watched(tmp_path / "inside"):
            MISDEEDS[deed](tmp_path / "outside")
        assert os.listdir(tmp_path / "outside") == ["there"]

    assert in_a_child(law) == 0
