"""Submit: how words are sorted, what is kept where, what is refused. With an sbatch that only notes what it got."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import journal
from holdfast.cli import commands
from holdfast.cli.submit import sort

FAKE = """#!/bin/sh
echo "$@" >> "$SEEN"
env | grep ^SLURM_ >> "$SEEN"
case "$*" in *refused*) echo "sbatch: error: invalid partition specified: nope" >&2; exit 1;; esac
echo 4711
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder, and an sbatch on PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text(FAKE)
    (programs / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def submit(*words):
    return CliRunner().invoke(commands, ["submit", *map(str, words)])


def script(*words):
    """The text that --dry-run prints."""
    result = submit("--dry-run", *words)
    assert 0 == result.exit_code, result.stderr
    return result.stdout


def directives(text):
    return [
        line.split("  #")[0].removeprefix("#SBATCH ").strip()
        for line in text.splitlines()
        if line.startswith("#SBATCH")
    ]


def test_words_before_the_dashes_are_sorted_and_those_after_are_left_alone():
    """What submit does not know is sbatch's; a word without a dash belongs to the option before it."""
    words = sort(
        shlex.split("--time 10 --chain 3 -p long --lead=5 -N2 -- python --chain a.py -- b"), ["--chain", "--lead"]
    )
    assert ["--chain", "3", "--lead=5"] == words.ours
    assert ["--time=10", "--partition=long", "--nodes=2"] == [str(option) for option in words.sbatch]
    assert ["python", "--chain", "a.py", "--", "b"] == words.command


def test_the_script_is_kept_beside_the_journal_and_submitted(place, tmp_path):
    """And the folder of the output is there, which Slurm would not make."""
    result = submit("--time", "1:00:00", "-o", "logs/deep/%x-%j.out", "--", "python", "train.py")
    assert 0 == result.exit_code, result.output
    kept = place / ".holdfast/train/job.sh"
    assert "exec" in kept.read_text()
    assert (place / "logs/deep").is_dir()
    assert ["--parsable .holdfast/train/job.sh"] == (tmp_path / "seen").read_text().splitlines()
    assert [
        "submitted job 4711",
        "script  .holdfast/train/job.sh",
        "output  logs/deep/train-4711.out",
        "look    squeue --jobs 4711; tail -F logs/deep/train-4711.out",
        "end     scancel 4711",
    ] == result.stdout.splitlines()


def test_the_answer_can_be_read_by_programs(place):
    """--json."""
    result = submit("--chain", 3, "--json", "--run", "runs/x", "-t", "60", "--", "python", "train.py")
    assert {
        "job": "4711",
        "script": "runs/x/job.sh",
        "output": "runs/x/slurm-4711.out",
        "directory": "runs/x",
    } == json.loads(result.stdout)


def test_a_dry_run_prints_the_script_and_leaves_nothing(place, tmp_path):
    """Not even a folder."""
    text = script("-t", 60, "--", "python", "train.py")
    assert text.startswith("#!/bin/bash\n")
    assert [] == list(place.iterdir())
    assert not (tmp_path / "seen").exists()


def test_the_job_inherits_nothing_of_the_job_that_submits_it(place, tmp_path, monkeypatch):
    """A job submitted from a job."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert 0 == submit("-t", "60", "--", "python", "train.py").exit_code
    assert ["SLURM_CONF=/etc/slurm.conf"] == (tmp_path / "seen").read_text().splitlines()[1:]


def test_what_sbatch_refuses_is_one_line_and_exit_6(place, monkeypatch):
    """With its own words; without sbatch on PATH, the script is there to be carried elsewhere."""
    for run, why in (("refused", "invalid partition specified: nope"), ("elsewhere", "sbatch cannot be started")):
        result = submit("-t", 60, "--run", run, "--", "python", "train.py")
        assert (6, 1) == (result.exit_code, len(result.stderr.splitlines()))
        assert why in result.stderr
        assert (place / run / "job.sh").exists()
        monkeypatch.setenv("PATH", str(place))


def is_refused(place, words, why):
    """One line and exit 2; nothing was submitted or written."""
    before = list(place.iterdir())
    result = submit(*words)
    assert (2, 1) == (result.exit_code, len(result.stderr.splitlines())), result.output
    assert why in result.stderr
    assert before == list(place.iterdir())


def test_wrong_use_is_one_line_and_exit_2(place):
    """And nothing was submitted or written."""
    is_refused(place, ["-t", "60"], "what shall be run?")
    is_refused(place, ["-t", "60", "--"], "what shall be run?")
    for words, why in {
        "stray": "'stray' is neither an option nor the value of one",
        "-t 60 more": "'more' is neither",
        "-!": "-! is no option of sbatch",
        "--chain 1": "--chain",
        "--lead soon": "--lead",
        "--lead 60 --time 1": "leaves no time to work: --lead 60",
        "--signal USR1": "say --lead SECONDS",
    }.items():
        is_refused(place, [*words.split(), "--", "python", "a.py"], why)


def test_the_lead_is_what_a_save_of_this_run_needs(place):
    """Half as much again as it took, a second to leave, and the 30 s by which a notice may be late."""
    assert "--signal=B:USR1@120" in directives(script("-t", "1:00:00", "--", "python", "a.py"))
    assert "--signal=B:USR1@60" in directives(script("-t", "4", "--", "python", "a.py"))  # a quarter of little time
    told = submit("--help").stdout
    assert "a quarter of a --time under 8 minutes" in " ".join(told.split())
    assert " submit [SBATCH OPTIONS] [OPTIONS] -- COMMAND...\n" in told
    history = place / "runs/x/history"
    history.mkdir(parents=True)
    (history / "attempt-1.jsonl").write_bytes(journal.lines([{"event": "saved", "step": 1, "save_s": 400.0}]))
    (place / ".holdfast/a").mkdir(parents=True)
    (place / ".holdfast/a/run-here.json").write_text(json.dumps({"run": str(place / "runs/x")}))
    assert "--signal=B:USR1@631" in directives(script("-t", "1:00:00", "--", "python", "a.py"))
    assert "--signal=B:USR1@90" in directives(script("-t", "60", "--lead", "90", "--", "python", "a.py"))
    assert "a save took 400 s" in submit("-t", "10", "--", "python", "a.py").stderr


def test_what_the_supervisor_takes_is_handed_on(place):
    """Its options, and where it keeps its journal."""
    text = script(
        "--retries", 3, "--app", "gromacs", "--max-requeues=9", "--no-requeue", "-t", 60, "--", "gmx", "mdrun"
    )
    last = text.splitlines()[-1]
    assert last.endswith(
        " run --run runs/gromacs --lead=120 --app=gromacs --retries=3 --max-requeues=9 --no-requeue -- gmx mdrun"
    )
    assert "--no-requeue" in directives(text)
    assert "--requeue" not in directives(text)


def test_a_run_on_hold_is_submitted_and_told(place):
    """The supervisor's directory, or the run that it looks after; else not a word."""
    words = ["-t", 60, "--", "python", "a.py"]
    assert "on hold" not in submit(*words).stderr
    (place / "runs").mkdir()
    (place / "runs/hold").touch()
    (place / ".holdfast/a/run-here.json").write_text(json.dumps({"run": str(place / "runs")}))
    of = f"{place}/runs"
    told = f"holdfast: {of} is on hold: it runs until it stops, and is not started again; holdfast release {of}\n"
    assert (0, told) == ((result := submit(*words)).exit_code, result.stderr)
    (place / ".holdfast/a/hold").touch()
    assert ".holdfast/a is on hold: it runs until it stops" in submit(*words).stderr


def test_the_script_may_be_submitted_from_any_folder(place):
    """Its paths are those of the folder where submit was called, or that the user named."""
    assert f"--chdir={place}" in directives(script("-t", 60, "--", "python", "a.py"))
    text = script("-t", 60, "-D", "elsewhere", "--", "python", "a.py")
    assert [f"--chdir={place}/elsewhere"] == [line for line in directives(text) if "chdir" in line]
    (place / "elsewhere").mkdir()
    result = submit("--chdir", "elsewhere", "-t", 60, "--", "python", "a.py")
    assert 0 == result.exit_code, result.output
    assert (place / "elsewhere/.holdfast/a/job.sh").exists()
    assert "output  elsewhere/.holdfast/a/slurm-4711.out" in result.stdout


def test_the_job_calls_the_holdfast_that_submitted_it(place, tmp_path):
    """By its name where PATH knows it, else in full."""
    program = Path(sys.executable).parent / "holdfast"
    words = ["submit", "--dry-run", "-t", "60", "--", "python", "a.py"]

    def last(*command, path):
        done = subprocess.run(
            [*command, *words], env={"PATH": path}, capture_output=True, text=True, check=True, cwd=place
        )
        return done.stdout.splitlines()[-1].split(" run --run")[0]

    assert f"exec {program}" == last(program, path="/usr/bin:/bin")
    assert "exec holdfast" == last(program, path=f"{program.parent}:/usr/bin:/bin")
    words[2:2] = ["--export=NONE"]
    assert f"exec {program}" == last(program, path=f"{program.parent}:/usr/bin:/bin")
    assert f"exec {sys.executable} -m holdfast" == last(sys.executable, "-m", "holdfast", path="/usr/bin:/bin")


# Defaults from a file -------------------------------------------------------------------------------------------

SETTINGS = """
[{0}submit]
lead = 300
setup = ["module load anaconda/3"]
max-no-progress = 5

[{0}submit.sbatch]
partition = "long"
time = "12:00:00"
c = 4
exclusive = true
hold = false
"""


@pytest.mark.parametrize(("file", "prefix"), [("holdfast.toml", ""), ("pyproject.toml", "tool.holdfast.")])
def test_options_come_from_a_file_too_and_the_command_line_wins(place, file, prefix):
    """Also under another name: -t is --time."""
    Path(file).write_text(SETTINGS.format(prefix))
    text = script("--", "python", "a.py")
    wanted = [
        "--partition=long",
        "--time=12:00:00",
        "--cpus-per-task=4",
        "--exclusive",
        f"--chdir={place}",
        "--requeue",
    ]
    assert wanted == directives(text)[2:8]
    assert "--signal=B:USR1@300" in directives(text)
    assert "\nmodule load anaconda/3\n" in text
    assert "--max-no-progress=5" in text
    text = script("-t", "60", "--lead", "5", "--setup", "true", "--", "python", "a.py")
    assert "--time=60" in directives(text)
    assert "--time=12:00:00" not in directives(text)
    assert "--signal=B:USR1@5" in directives(text)
    assert "module load" not in text


def test_a_mistake_in_the_file_is_one_line_and_exit_2(place):
    """Nothing is guessed."""
    for text, why in {
        "[submit]\nleed = 3\n": "holdfast submit has no option leed; it has",
        "[submit\n": "holdfast.toml: ",
        "submit = 3\n": "submit is no table",
        "[submit]\nsbatch = 3\n": "write [submit.sbatch]",
        "[submit]\nlead = 'soon'\n": "lead",
        "[submit.sbatch]\nsignal = 'USR1'\n": "say --lead SECONDS",
    }.items():
        Path("holdfast.toml").write_text(text)
        is_refused(place, ["--", "python", "a.py"], why)


def test_the_file_names_options_as_the_command_line_does(place):
    """`run` and not what we call it inside; a switch is true or false."""
    Path("holdfast.toml").write_text('[submit]\nrun = "runs/z"\nretries = 3\nmax-requeues = 0\ndry-run = true\n')
    result = submit("--", "python", "a.py")
    assert 0 == result.exit_code, result.output
    assert result.stdout.endswith(" run --run runs/z --lead=120 --retries=3 --max-requeues=0 -- python a.py\n")
    assert ["holdfast.toml"] == [path.name for path in place.iterdir()]


def test_a_file_further_up_is_not_looked_at(place, monkeypatch):
    """It may be a stranger's, and its set-up lines would be run."""
    Path("holdfast.toml").write_text(SETTINGS.format(""))
    Path("deeper").mkdir()
    monkeypatch.chdir(place / "deeper")
    Path("pyproject.toml").write_text("[project]\nname = 'x'\n")  # nor is one that says nothing of us
    assert "module load" not in script("--", "python", "a.py")
