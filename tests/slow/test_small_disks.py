"""File systems that are full, or memory: real ones, mounted as root."""

import json
import os
import subprocess

import pytest

from needed import missing
from stores import invoke
from supervised import bash, supervised


@pytest.fixture
def small(tmp_path):
    """A tmpfs of 64 KiB and 12 files, under a name with a space."""
    if reason := missing("mount", "umount", root=True):
        pytest.skip(reason)
    place = tmp_path / "my memory"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=12", "none", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_submit_on_a_full_disk_is_one_line_and_exit_7(small, tmp_path, monkeypatch):
    """Nothing is submitted, and an earlier script is as it was."""
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\necho submitted >> {tmp_path}/seen\necho 4711\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert 0 == invoke("submit", "--run", small / "x", "--", "true").exit_code
    before = (small / "x/job.sh").read_bytes()
    with pytest.raises(OSError, match="No space"), open(small / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    result = invoke("submit", "-t", "90", "--run", small / "y", "--", "true")
    assert (7, 1) == (result.exit_code, len(result.stderr.splitlines()))
    assert before == (small / "x/job.sh").read_bytes()
    assert ["filler", "x"] == sorted(path.name for path in small.iterdir())
    assert "submitted\n" == (tmp_path / "seen").read_text()


def test_doctor_says_that_memory_is_no_place_for_checkpoints(small, monkeypatch):
    """The file system is that of the folder."""
    with monkeypatch.context() as inside:
        inside.chdir(small)
        checks = json.loads(invoke("doctor", "--json").stdout)["checks"]
    (found,) = (check for check in checks if check["name"] == "file system")
    assert ("warning", f"tmpfs, mounted on {small}: memory") == (found["level"], found["what"])
    assert "gone after a reboot" in found["todo"]


def test_a_full_disk_stops_only_the_supervisors_journal(small, tmp_path):
    """It is told once; the command ends as it would, and so do we."""
    journal = small / "place" / "supervisor.jsonl"
    fill = f"truncate -s 4096 '{journal}'; dd if=/dev/zero of='{small}/fill' bs=1k 2>/dev/null;"
    again = "n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n; echo attempt $n; [ $n -ge 2 ] || exit 75"
    it = supervised(tmp_path, bash(f"{fill} {again}"), "--run", small / "place")
    assert (0, "attempt 0\nattempt 1\nattempt 2\n") == (it.code, it.printed)
    told = f"warning: {journal}: No space left on device; supervising goes on, the journal waits"
    assert 1 <= it.said.count(told) <= 2  # the sign of life may give back a page for a while
    at_its_end = b'"event":"end"' not in journal.read_bytes()
    assert at_its_end == it.said.count(f"{journal}: not written, at its end: ")
    with pytest.raises(OSError, match="No space"):
        for number in range(20):
            (small / f"{number}").touch()
    refused = supervised(tmp_path, ["true"], "--run", small / "another" / "place")
    assert 7 == refused.code
    assert "no space left for the supervisor's journal; nothing was started" in refused.said
