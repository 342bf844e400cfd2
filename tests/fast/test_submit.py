"""Submit: how words are sorted, what is kept where, what is refused. With an sbatch that only notes what it got."""

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import journal
from holdfast.cli.submit_words import split_arguments
from holdfast.supervise import submission
from stores import invoke

FAKE = """#!/bin/sh
echo "$@" >> "$SEEN"
env | grep ^SLURM_ >> "$SEEN"
case "$* $(tail -n 30 "$2" 2>/dev/null)" in
  *refused/job.sh*|*comment=refused*) echo "sbatch: error: invalid partition specified: nope" >&2; exit 1;;
esac
echo 4711
"""
QUEUE = """#!/bin/sh
[ ! -e "$SEEN.queue" ] || cat "$SEEN.queue"
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder, and an sbatch on PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"sbatch": FAKE, "squeue": QUEUE, "python": "", "gmx": ""}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    work = tmp_path / "work"
    work.mkdir()
    for name in ("a.py", "train.py"):
        (work / name).touch()
    monkeypatch.chdir(work)
    return work


def submit(*words):
    return invoke("submit", *words)


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
    words = split_arguments(
        shlex.split("--time 10 --chain 3 -p long --lead=5 -N2 -- python --chain a.py -- b"), ["--chain", "--lead"]
    )
    assert ["--chain", "3", "--lead=5"] == words.ours
    assert ["--time=10", "--partition=long", "--nodes=2"] == [str(option) for option in words.sbatch]
    assert ["python", "--chain", "a.py", "--", "b"] == words.command


def test_the_script_is_kept_beside_the_journal_and_submitted(place, tmp_path):
    """And the folder of the output is there, which Slurm would not make."""
    result = submit("--time", "1:00:00", "-o", "logs/deep/%x-%j.out", "--", "python", "train.py")
    assert 0 == result.exit_code, result.output
    kept = place / ".holdfast/train-1/job.sh"
    assert "exec" in kept.read_text()
    assert (place / "logs/deep").is_dir()
    assert [f"--parsable {kept}"] == (tmp_path / "seen").read_text().splitlines()  # by which squeue tells whose it is
    assert [
        "submitted job 4711",
        "script  .holdfast/train-1/job.sh",
        "output  logs/deep/train-4711.out",
        "look    holdfast status .holdfast/train-1; tail -F logs/deep/train-4711.out",
        "end     scancel 4711",
    ] == result.stdout.splitlines()


def test_the_answer_can_be_read_by_programs(place):
    """--json."""
    result = submit("--chain", 3, "--json", "--run", "runs/x", "-t", "60", "--", "python", "train.py")
    assert {
        "version": 1,
        "job": "4711",
        "script": "runs/x/job.sh",
        "output": "runs/x/slurm-4711.out",
        "directory": "runs/x",
        "array": "1-3%1",
    } == json.loads(result.stdout)


def test_a_dry_run_prints_the_script_and_leaves_nothing(place, tmp_path):
    """Not even a folder."""
    text = script("-t", 60, "--", "python", "train.py")
    assert text.startswith("#!/bin/bash\n")
    assert ["a.py", "train.py"] == sorted(path.name for path in place.iterdir())
    assert not (tmp_path / "seen").exists()


def test_the_job_inherits_nothing_of_the_job_that_submits_it(place, tmp_path, monkeypatch):
    """A job submitted from a job."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert 0 == submit("-t", "60", "--", "python", "train.py").exit_code
    assert ["SLURM_CONF=/etc/slurm.conf"] == (tmp_path / "seen").read_text().splitlines()[1:]


def test_what_sbatch_refuses_is_one_line_and_exit_6(place, monkeypatch):
    """With its own words, and nothing is left; without sbatch on PATH, the script is there to be carried elsewhere."""
    for run, why in (("refused", "invalid partition specified: nope"), ("elsewhere", "sbatch cannot be started")):
        result = submit("-t", 60, "--run", run, "--", "python", "train.py")
        assert (6, 1) == (result.exit_code, len(result.stderr.splitlines())), result.stderr
        assert why in result.stderr
        assert (run == "elsewhere") == ("on a machine with Slurm type: holdfast submit --continue " in result.stderr)
        assert (place / run).exists() == (run == "elsewhere")
        (place.parent / "bin/sbatch").unlink(missing_ok=True)
        monkeypatch.setenv("PATH", str(place.parent / "bin"))
    assert (place / "elsewhere/job.sh").exists()


CERTAIN = {
    "--time 3h": "line 5: --time=3h is not known to Slurm 22.05: write --time=3:00:00",
    "--tme 3:00:00": "line 5: --tme is not known to Slurm 22.05: write --time",
    "--mem 4G --mem-per-cpu 1G": "line 6: sbatch refuses the script: --mem and --mem-per-cpu exclude each other: "
    "keep one of the two",
}


@pytest.mark.parametrize("words", CERTAIN)
def test_what_lint_calls_certain_is_not_submitted(place, tmp_path, words):
    """One line says what is wrong, where, and what to do; --dry-run and --json say it, too, and nothing is left."""
    for extra in ([], ["--dry-run"], ["--json"]):
        result = submit(*shlex.split(words), *extra, "--", "python", "train.py")
        assert 2 == result.exit_code
        told = json.loads(result.stdout)["error"]["message"] if extra == ["--json"] else result.output
        assert CERTAIN[words] in told
        assert told.rstrip().count("\n") == 0
        assert "; nothing was submitted" in told
    assert ["a.py", "train.py"] == sorted(path.name for path in place.iterdir())
    assert not (tmp_path / "seen").exists() or "--parsable" not in (tmp_path / "seen").read_text()


def test_what_lint_is_not_sure_of_is_submitted_with_a_warning(place):
    """An option that a plugin may know; and all that a comment in the script allows."""
    allowed = ["--time=3h", "--setup", "# holdfast: allow script-refused"]
    for words, warned in (
        (["--gizmo=1"], "--gizmo is not known to Slurm 22.05"),
        (["--time=30:00", "--lead=5"], "the notice comes only 5 s before the end"),
        (allowed, ""),
    ):
        result = submit(*words, "--", "python", "train.py")
        assert 0 == result.exit_code, result.stderr
        assert warned in result.stderr
        assert bool(warned) == ("holdfast: warning: " in result.stderr)


def test_a_script_that_was_changed_for_the_worse_is_not_submitted_once_more(place):
    """--continue leaves it as it was."""
    assert 0 == submit("-t", "3:00:00", "--", "python", "train.py").exit_code
    script = place / ".holdfast/train-1/job.sh"
    before = script.read_text()
    result = submit("--continue", ".holdfast/train-1", "--time", "4h")
    assert (2, "") == (result.exit_code, result.stdout)
    assert "--time=4h is not known to Slurm 22.05: write --time=4:00:00" in result.stderr
    assert before == script.read_text()


# Each submission is by itself --------------------------------------------------------------------------------------


def test_submissions_of_one_script_have_directories_of_their_own(place):
    """The same command included; two at once, too. --job-name names them."""
    for number in (1, 2, 3):
        result = submit("-t", 60, "--", "python", "train.py", "--lr", number)
        assert f"script  .holdfast/train-{number}/job.sh" in result.stdout
        text = (place / f".holdfast/train-{number}/job.sh").read_text()
        assert text.endswith(f"--run .holdfast/train-{number} --lead=120 -- python train.py --lr {number}\n")
    result = submit("-t", 60, "-J", "mine", "--", "python", "train.py")
    assert "script  .holdfast/mine-1/job.sh" in result.stdout
    with ThreadPoolExecutor(8) as pool:
        made = {*pool.map(lambda _: submission.create_directory(place / "d", "x").name, range(40))}
    assert {f"x-{number}" for number in range(1, 41)} == made


def test_a_directory_that_is_named_belongs_to_one_submission(place):
    """Also to a `holdfast run` that was started there by hand."""
    words = ["-t", 60, "--run", "here", "--", "python", "train.py"]
    assert 0 == submit(*words).exit_code
    first = (place / "here/job.sh").read_text()
    result = submit(*words, "--other")
    assert (2, 1) == (result.exit_code, len(result.stderr.splitlines()))
    assert "holdfast submit --continue here" in result.stderr
    assert first == (place / "here/job.sh").read_text()
    (place / "hand").mkdir()
    (place / "hand/supervisor.jsonl").touch()
    is_refused(place, ["-t", 60, "--run", "hand", "--", "python", "train.py"], "give another --run")


def test_to_go_on_is_to_submit_the_same_script_again(place, tmp_path):
    """With other options of sbatch if wanted; not while its job is in the queue, nor where no script is."""
    assert 0 == submit("-t", 60, "-p", "long", "--", "python", "train.py").exit_code
    result = submit("--continue", ".holdfast/train-1", "--time", "2:00:00", "--mem=4G")
    assert 0 == result.exit_code, result.stderr
    text = (place / ".holdfast/train-1/job.sh").read_text()
    assert ["--time=2:00:00", "--mem=4G"] == directives(text)[-2:]
    assert "--partition=long" in directives(text)
    assert "--time=60" not in directives(text)
    assert [f"--parsable {place}/.holdfast/train-1/job.sh"] * 2 == (tmp_path / "seen").read_text().splitlines()
    (tmp_path / "seen.queue").write_text("4711|N/A|PENDING|Priority||N/A|/w|job.sh\n")
    is_refused(place, ["--continue", ".holdfast/train-1"], "its job 4711 is PENDING, and goes on by itself")
    is_refused(place, ["--continue", ".holdfast/train-1", "--", "python", "a.py"], "leave out the one after --")
    (tmp_path / "seen.queue").unlink()
    is_refused(place, ["--continue", ".holdfast/train-1", "--signal=USR2"], "cannot be changed on the way")
    assert 6 == submit("--continue", ".holdfast/train-1", "--comment", "refused").exit_code
    assert text == (place / ".holdfast/train-1/job.sh").read_text()
    assert 3 == submit("--continue", "nowhere").exit_code
    ended(place / ".holdfast/train-1", "end")
    is_refused(place, ["--continue", ".holdfast/train-1"], "it is done; to run the command again all the same: sbatch")


def ended(directory, event):
    """A supervisor's journal there, as `holdfast run` leaves it."""
    directory.mkdir(exist_ok=True)
    (directory / "supervisor.jsonl").write_bytes(journal.encode_events([{"event": "begin"}, {"event": event}]))


def test_a_sweep_is_an_array_with_a_run_for_each_task(place, tmp_path):
    """{task} and a variable carry the number; what goes on is what is neither done nor in the queue."""
    result = submit("-t", 60, "--array", "0-8:4,9%2", "--", "python", "train.py", "--seed={task}", "x y{task}")
    assert 0 == result.exit_code, result.stderr
    text = (place / ".holdfast/train-1/job.sh").read_text()
    assert {"--array=0,4,8-9%2", "--output=.holdfast/train-1/slurm-%A_%a.out"} <= {*directives(text)}
    assert "submitted job 4711, tasks 0,4,8-9%2" in result.stdout
    words = ["bash", "-c", text.replace("exec holdfast run --run", "printf '%s\n'").replace("exec ", "printf '%s\n' ")]
    words[2] = text[text.index("export HOLDFAST") :].replace("exec ", "printf '%s\\n' ")
    done = subprocess.run(words, env={"SLURM_ARRAY_TASK_ID": "8"}, capture_output=True, text=True, check=True)
    assert ["--run", ".holdfast/train-1/task-8"] == done.stdout.split("\n")[-9:-7]
    assert ["python", "train.py", "--seed=8", "x y8"] == done.stdout.split("\n")[-5:-1]
    ended(place / ".holdfast/train-1/task-4", "end")
    ended(place / ".holdfast/train-1/task-8", "failed")
    (tmp_path / "seen.queue").write_text("4711|9|RUNNING|None|n1|1|/w|job.sh\n12|8|PENDING|None||N/A|/w|job.sh\n")
    result = submit("--continue", ".holdfast/train-1")
    assert "2 of 4 tasks are submitted; 1 are done" in result.stderr
    os.chdir(place.parent)
    assert "output  work/.holdfast/train-1/slurm-4711_*.out" in submit("--continue", "work/.holdfast/train-1").stdout
    os.chdir(place)
    assert "submitted job 4711, tasks 0,8%2" in result.stdout
    path = place / ".holdfast/train-1/job.sh"
    assert f"--parsable --array=0,8%2 {path}" == (tmp_path / "seen").read_text().splitlines()[-1]
    (tmp_path / "seen.queue").write_text(
        "".join(f"4711|{number}|PENDING|None||N/A|/w|job.sh\n" for number in (0, 8, 9))
    )
    is_refused(place, ["--continue", ".holdfast/train-1"], "1 tasks are done, 3 in the queue, none is left")


COMMANDS = """# a sweep
python train.py --lr 0.1 --name "a b"

LR=3 python a.py $HOME
"""


def test_a_sweep_over_a_file_of_commands(place):
    """Copied at the submission: what is done to the file afterwards changes nothing."""
    (place / "runs.txt").write_text(COMMANDS)
    result = submit("-t", 60, "--commands", "runs.txt", "--array", "%5")
    assert 0 == result.exit_code, result.stderr
    text = (place / ".holdfast/runs-1/job.sh").read_text()
    assert "--array=1-2%5" in directives(text)
    (place / "runs.txt").write_text("rm x\n")
    shown = text[text.index("export HOLDFAST") :].replace("exec ", "printf '%s\\n' ")
    for number, words in {"1": ["--lr", "0.1", "--name", "a b"], "2": ["LR=3", "python", "a.py", "/h"]}.items():
        environment = {"SLURM_ARRAY_TASK_ID": number, "HOME": "/h", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(["bash", "-c", shown], env=environment, capture_output=True, text=True, check=True)
        assert words == done.stdout.split("\n")[-5:-1], done.stdout


def test_a_sweep_that_cannot_be_is_refused(place):
    """One line, and nothing in the queue."""
    (place / "piped.txt").write_text("python a.py | tee x\n")
    (place / "two.txt").write_text("python a.py\npython a.py 2\n")
    (place / "typo.txt").write_text("python a.py\npython b.py\n")
    (place / "none.txt").write_text("# nothing\n")
    for words, why in {
        "--array 3-1": "3-1 has no task",
        "--array 1-3%0": "after % stands how many",
        "--array x": "write it as 1-20",
        "--array 1-3 --chain 2": "--chain and --array",
        "--commands two.txt": "takes the place of the command",
    }.items():
        is_refused(place, [*words.split(), "--", "python", "a.py"], why)
    is_refused(place, ["--commands", "two.txt", "--array", "1-3"], "commands 1 to 2, and none has the number 3")
    is_refused(place, ["--commands", "piped.txt"], "line 1: `python a.py | tee x` is not one plain command")
    is_refused(place, ["--commands", "typo.txt"], "b.py does not exist")
    is_refused(place, ["--commands", "none.txt"], "it holds no command")
    is_refused(place, ["--commands", "away.txt"], "No such file")
    (place.parent / "bin/scontrol").write_text("#!/bin/sh\necho 'MaxArraySize            = 1001'\n")
    (place.parent / "bin/scontrol").chmod(0o755)
    is_refused(place, ["--array", "1-1001", "--", "python", "a.py"], "up to 1000 (MaxArraySize)")
    assert 0 == submit("--array", "1-1000", "--", "python", "a.py", "{task}").exit_code
    told = submit("--array", "1-2", "--", "python", "a.py").stderr
    assert "no word of the command holds {task}" in told
    assert "--chain" not in told
    told = submit("--array", "1-10%1", "--", "python", "a.py").stderr
    assert "one after the other at one work: --chain 10 instead of --array" in told


# What would fail at its start is not submitted ---------------------------------------------------------------------


def test_a_script_that_is_not_there_is_refused_where_its_path_is_certain(place, monkeypatch):
    """Not where something is staged, or a set-up line goes elsewhere, or the word may be an option's."""
    for name in ("srun", "gmx"):  # also on a machine without them
        (place / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    for words in ("python trian.py", "python -u -X dev trian.py --lr 1", "./trian.py", "srun python trian.py"):
        is_refused(place, ["-t", 60, "--", *words.split()], "does not exist, and the job would fail of it")
    (place / "deep").mkdir()
    (place / "deep/only.py").touch()
    is_refused(place, ["-D", "deep", "--", "python", "a.py"], "deep/a.py does not exist")
    for words in (
        "-D deep -- python only.py",
        "--setup cd@$X -- python trian.py",
        "--stage deep -- python trian.py",
        "-- python -m trian",
        "-- python -c trian.py",
        "-- python --some thing",
        "-- srun -n 2 python trian.py",
        "-- gmx mdrun trian.py",
    ):
        result = submit(*(word.replace("@", " ") for word in words.split()))
        assert 0 == result.exit_code, (words, result.stderr)


def test_a_program_that_is_not_on_path_needs_a_line_that_brings_it(place):
    """Refused without one; a warning with one, or where the job gets another environment."""
    is_refused(place, ["--", "namd3", "run.conf"], "namd3 is not on PATH")
    is_refused(place, ["--", "a.py", "--lr", "1"], "a.py is a file and no program on PATH: write -- python a.py --lr 1")
    is_refused(place, ["--", "./a.py"], "./a.py is not executable")
    for more in (["--setup", "module load namd"], ["--export=NONE"]):
        result = submit(*more, "--", "namd3", "run.conf")
        assert 0 == result.exit_code
        assert "namd3 is not on PATH here" in result.stderr


def test_a_batch_script_as_the_command_is_told_that_its_options_are_not_read(place):
    """As somebody would try who has one for sbatch; the job asks for nothing of what it says."""
    (place / "job.sh").write_text("#!/bin/bash\n#SBATCH --mem=16G\npython a.py\n")
    (place / "job.sh").chmod(0o755)
    for words in (["./job.sh"], ["bash", "job.sh"]):
        result = submit("--", *words)
        assert result.exit_code == 0
        assert "job.sh: its #SBATCH lines do not count here: write them before --, or sbatch it itself" in result.stderr
    assert "#SBATCH" not in submit("--", "python", "a.py").stderr


def test_what_is_to_be_staged_and_is_not_here_is_told(place):
    """It may be on the nodes alone."""
    (place / "here").touch()
    result = submit("--stage", "here", "--stage", "away/set.tar", "--", "python", "a.py")
    assert result.exit_code == 0
    assert f"--stage {place}/away/set.tar: it is not on this machine" in result.stderr
    assert f"{place}/here" not in result.stderr


def test_a_set_up_line_is_one_that_bash_can_read(place):
    """And says so before the queue."""
    for line in ("if true; then", "echo 'a", "cat <<X", "a \\", "for"):
        is_refused(place, ["--setup", line, "--", "python", "a.py"], "bash cannot read it")


def test_a_set_up_line_that_fails_ends_the_job_with_its_own_code(place):
    """Named; a function that returns non-zero on its way, as conda and module do, does not."""
    text = script("--setup", "module() { false; true; }", "--setup", "module load x # it", "--", "python", "a.py")
    body = text[text.index("# A line that fails") : text.index("# exec")]
    assert 0 == subprocess.run(["bash", "-c", body], check=False).returncode
    done = subprocess.run(
        ["bash", "-c", body.replace("module load x # it", "(exit 7)")], capture_output=True, text=True, check=False
    )
    first, then = done.stderr.splitlines()
    assert (7, "holdfast: set-up ended with exit code 7: (exit 7)") == (done.returncode, first.replace("'", ""))
    assert "holdfast: when that is mended, go on with: holdfast submit --continue .holdfast/a-1" == then


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
        "stray": "'stray' is neither an option nor the value of one; what shall run stands after --",
        "-t 60 more": "'more' is neither",
        "-!": "-! is not known to Slurm 22.05",
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
    (history / "attempt-1.jsonl").write_bytes(journal.encode_events([{"event": "saved", "step": 1, "save_s": 400.0}]))
    (place / ".holdfast/a-1").mkdir(parents=True)
    (place / ".holdfast/a-1/run-here.json").write_text(json.dumps({"run": str(place / "runs/x")}))
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
        " run --run runs/gromacs-1 --lead=120 --app=gromacs --retries=3 --max-requeues=9 --no-requeue -- gmx mdrun"
    )
    assert "--no-requeue" in directives(text)
    assert "--requeue" not in directives(text)


def test_a_run_on_hold_is_not_submitted_again(place):
    """The supervisor's directory, or the run that it looks after."""
    assert 0 == submit("-t", 60, "--", "python", "a.py").exit_code
    words = ["--continue", ".holdfast/a-1"]
    (place / "runs").mkdir()
    (place / "runs/hold").touch()
    (place / ".holdfast/a-1/run-here.json").write_text(json.dumps({"run": str(place / "runs")}))
    of, again = f"{place}/runs", "holdfast submit --continue .holdfast/a-1"
    is_refused(place, words, f"{of} is on hold, so it is not started: holdfast release {of} && {again}")
    (place / ".holdfast/a-1/hold").touch()
    is_refused(place, words, ".holdfast/a-1 is on hold")


def test_the_script_may_be_submitted_from_any_folder(place):
    """Its paths are those of the folder where submit was called, or that the user named."""
    assert f"--chdir={place}" in directives(script("-t", 60, "--", "python", "a.py"))
    text = script("-t", 60, "-D", "elsewhere", "--", "python", "a.py")
    assert [f"--chdir={place}/elsewhere"] == [line for line in directives(text) if "chdir" in line]
    (place / "elsewhere").mkdir()
    (place / "elsewhere/a.py").touch()
    result = submit("--chdir", "elsewhere", "-t", 60, "--", "python", "a.py")
    assert 0 == result.exit_code, result.output
    assert (place / "elsewhere/.holdfast/a-1/job.sh").exists()
    assert "output  elsewhere/.holdfast/a-1/slurm-4711.out" in result.stdout


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
    assert "\nmodule load anaconda/3\nset_up_done 'module load anaconda/3'\n" in text
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
    assert ["a.py", "holdfast.toml", "train.py"] == sorted(path.name for path in place.iterdir())


def test_a_file_further_up_is_not_looked_at(place, monkeypatch):
    """It may be a stranger's, and its set-up lines would be run."""
    Path("holdfast.toml").write_text(SETTINGS.format(""))
    Path("deeper").mkdir()
    monkeypatch.chdir(place / "deeper")
    Path("pyproject.toml").write_text("[project]\nname = 'x'\n")  # nor is one that says nothing of us
    assert "module load" not in script("--", "python", "a.py")
