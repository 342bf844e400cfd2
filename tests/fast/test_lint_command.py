"""`holdfast lint`: files, text and JSON, exit codes."""

import json
import time
from pathlib import Path

import pytest

from fakes import Fakes
from holdfast import journal
from lint_faults import CLEAN, FAULTS, LONG, job
from stores import invoke


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without this machine's sbatch
    return tmp_path


def lint(*words):
    return invoke("lint", *words)


def test_a_finding_is_two_lines_with_file_line_severity_and_fix():
    """The last line says how many there are, also of clean files."""
    Path("job.sh").write_text(CLEAN.replace("append", "truncate"))
    Path("clean.sh").write_text(CLEAN)
    result = lint("job.sh", "clean.sh")
    assert (
        "job.sh:3: may lose work: each start of this job empties the output file: what earlier starts printed is lost "
        "[append-missing]\n    fix: write --open-mode=append\n1 finding in 2 files\n"
    ) == result.stdout
    assert (0, "no findings in 1 file\n") == (lint("clean.sh").exit_code, lint("clean.sh").stdout)


def test_fix_writes_what_needs_no_decision_and_leaves_the_rest():
    """The mode stays, a second call changes nothing, and the exit code is that of what is left."""
    Path("job.sh").write_bytes(
        CLEAN.replace("append", "truncate").replace("module", "echo \xe9; module").encode("latin-1")
    )
    Path("job.sh").chmod(0o750)
    Path("link.sh").symlink_to("job.sh")
    assert 1 == lint("link.sh").exit_code
    fixed = lint("link.sh", "--fix")
    assert (0, "link.sh: fixed\nno findings in 1 file\n") == (fixed.exit_code, fixed.stdout)
    assert b"--open-mode=append" in Path("job.sh").read_bytes()
    assert b"echo \xe9;" in Path("job.sh").read_bytes()
    assert 0o750 == Path("job.sh").stat().st_mode & 0o777
    assert Path("link.sh").is_symlink()
    assert (0, "no findings in 1 file\n") == (lint("job.sh", "--fix").exit_code, lint("job.sh", "--fix").stdout)


@pytest.mark.parametrize("name", FAULTS)
def test_after_fix_nothing_is_left_that_has_an_edit(name):
    _, faulty, _, _ = FAULTS[name]
    Path("job.sh").write_text(faulty)
    left = json.loads(lint("job.sh", "--fix", "--json").stdout)
    assert [] == [each for each in left["findings"] if each["edits"]]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (CLEAN, 0),
        (CLEAN.replace("module load", "set -u; conda activate x; module load"), 0),
        (CLEAN.replace("append", "truncate"), 1),
        (CLEAN.replace("exec ", ""), 11),
    ],
)
def test_the_exit_code_tells_the_worst_severity(text, code):
    """0: nothing or style, 1: work may be lost, 11: it is."""
    Path("job.sh").write_text(text)
    assert code == lint("job.sh").exit_code


def test_a_file_that_cannot_be_read_hides_no_finding_of_the_others():
    """Each is named on stderr, with the reason; the exit code is 2, or that of a finding that is worse."""
    Path("job.sh").write_text(CLEAN.replace("append", "truncate"))
    Path("program.py").write_text("print(1)\n")
    Path("binary").write_bytes(b"\x7fELF\0#SBATCH")
    Path("folder").mkdir()
    result = lint("nowhere.sh", "program.py", "binary", "folder", "job.sh")
    assert 2 == result.exit_code
    assert 1 == result.stdout.count("[append-missing]")
    assert ["nowhere.sh", "program.py", "binary", "folder"] == [
        line.split(": ")[1] for line in result.stderr.splitlines()
    ]
    Path("job.sh").write_text(CLEAN.replace("exec ", ""))
    assert 11 == lint("nowhere.sh", "job.sh").exit_code
    assert 2 == lint().exit_code
    unread = json.loads(lint("nowhere.sh", "job.sh", "--json").stdout)["unread"]
    assert [{"file": "nowhere.sh", "why": "No such file or directory"}] == unread


def test_every_shell_is_read_and_of_other_languages_the_directives():
    """With options, through env; zsh as well."""
    for first in ("/bin/bash -l", "/bin/bash -e", "/usr/bin/env -S bash -l", "/usr/bin/env zsh", " /bin/sh"):
        Path("job").write_text(CLEAN.replace("/bin/bash", first).replace("exec ", ""))
        assert 11 == lint("job").exit_code, first
    Path("job").write_text("#!/usr/bin/env python3\n#SBATCH --tme=5\nholdfast = run\n")
    assert "1 [script-refused]" == f"{lint('job').exit_code} {lint('job').stdout.splitlines()[0].split()[-1]}"
    Path("job").write_text("#!/usr/bin/Rscript\n#SBATCH --time=5\n")
    assert (0, "no findings in 1 file\n") == (lint("job").exit_code, lint("job").output)


def test_json_has_the_same_facts_and_the_edits():
    """For programs: where the edit begins and ends, and what stands there then."""
    text = job("python train.py", LONG)
    Path("job.sh").write_text(text)
    (finding,) = json.loads(lint("job.sh", "--json").stdout)["findings"]
    assert {"file", "line", "rule", "severity", "what", "fix", "edits"} == set(finding)
    assert ("job.sh", 3, "no-grace", "may lose work") == tuple(
        finding[name] for name in ("file", "line", "rule", "severity")
    )
    place = text.index("python")
    assert [{"start": place, "end": place, "new": "exec holdfast run -- "}] == finding["edits"]
    Path("job.sh").write_text(CLEAN)
    assert {"version": 1, "findings": [], "unread": [], "fixed": []} == json.loads(lint("job.sh", "--json").stdout)


def test_folders_are_looked_for_here_unless_their_file_system_is_not():
    """/scratch of the cluster proves nothing on a laptop."""
    option = "--requeue --output={}/%j.out"
    finds = {}
    for folder in ("logs", "there", "/nowhere-here/logs", "/tmp/nowhere-here"):
        Path("there").mkdir(exist_ok=True)
        Path("job.sh").write_text(CLEAN.replace("--requeue", option.format(folder)))
        finds[folder] = "log-folder-missing" in lint("job.sh").stdout
    assert {"logs": True, "there": False, "/nowhere-here/logs": False, "/tmp/nowhere-here": True} == finds


def test_it_knows_what_saves_of_the_scripts_own_run_took():
    """`holdfast run --run DIR` says where to look; --run says it otherwise."""
    history = Path("runs/x/history")
    history.mkdir(parents=True)
    (history / "attempt-1.jsonl").write_bytes(journal.encode_events([{"event": "saved", "step": 1, "save_s": 400.0}]))
    Path("job.sh").write_text(CLEAN)
    assert 0 == lint("job.sh").exit_code
    assert "write --signal=B:USR1@631" in lint("job.sh", "--run", "runs/x").stdout
    for words in ("--run runs/x --", "--run=runs/x -- foo --run=y"):
        Path("job.sh").write_text(CLEAN.replace("holdfast run --", f"holdfast run {words}"))
        assert "a save took 400 s [lead-too-short]" in lint("job.sh").stdout
    Path("job.sh").write_text(CLEAN.replace("12:00:00", "8"))
    assert "the job ends before its first save [time-below-save]" in lint("job.sh", "--run", "runs/x").stdout
    assert 3 == lint("job.sh", "--run", "nowhere").exit_code


UNKNOWN = CLEAN.replace("--requeue", "--requeue=expedite --consolidate-segments --qqq")


def test_the_local_sbatch_is_asked_once_and_only_about_what_is_unknown(place, monkeypatch):
    """One look at its version and its help, however many scripts and options there are."""
    fakes = Fakes(place, monkeypatch)
    fakes.say("sbatch --version", "slurm 25.11.2\n")
    fakes.say("sbatch --help", "      --requeue[=expedite]   if set\n      --consolidate-segments  x\n")
    Path("clean.sh").write_text(CLEAN)
    assert (0, []) == (lint("clean.sh").exit_code, fakes.calls)
    for name in ("a.sh", "b.sh"):
        Path(name).write_text(UNKNOWN)
    told = lint("a.sh", "b.sh", "clean.sh").stdout
    assert 2 == told.count("--qqq is not known to Slurm 22.05 [script-refused]")
    assert 2 == told.count("[script-refused]")
    assert ["sbatch --version", "sbatch --help"] == fakes.calls


@pytest.mark.parametrize("answer", ["none", "an error", "silence"])
def test_without_an_answer_of_sbatch_the_table_alone_is_quoted(answer, place, monkeypatch):
    """No sbatch, one without a configuration, and one that looks for its server for a minute."""
    fakes = Fakes(place, monkeypatch)
    if answer != "none":
        wait = "exec /bin/sleep 60" if answer == "silence" else ""
        fakes.say("sbatch", "", err="sbatch: fatal: Could not establish a configuration source\n", code=1, after=wait)
    Path("a.sh").write_text(UNKNOWN)
    monkeypatch.setattr("holdfast.cluster.slurm._SELF_LIMIT_S", 0.5 if answer == "silence" else 10.0)
    began = time.monotonic()
    result = lint("a.sh")
    assert time.monotonic() - began < 5
    assert (1, 3) == (result.exit_code, result.stdout.count("is not known to Slurm 22.05 [script-refused]"))
    assert ["sbatch --version"] * (answer != "none") == fakes.calls
