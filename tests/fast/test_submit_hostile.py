"""Submit: what it must leave alone: the user's own folder, what --continue was not told to change, odd names."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_submit import directives, is_refused, place, submit

from holdfast.batch import sbatch
from holdfast.batch.sbatch import Option
from holdfast.cli.preflight import script_file
from holdfast.cluster import slurm
from holdfast.errors import UsageError
from holdfast.supervise import submission
from stores import invoke

__all__ = ["place"]  # a fixture


def test_a_refused_submission_leaves_the_folder_of_the_user_as_it_was(place):
    """`--run` may name the folder with the program, or one with results in it."""
    (place / "results").mkdir()
    (place / "results/best.ckpt").write_text("a week's work")
    for named in (".", "results", str(place)):
        before = {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}
        assert 6 == submit("-t", 60, "--comment", "refused", "--run", named, "--", "python", "train.py").exit_code
        assert before == {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}


def test_one_of_two_submissions_that_name_a_directory_gets_it(place):
    """At the same instant, too: the other one's script would be overwritten, and both jobs would run."""

    def claimed(directory):
        try:
            submission.claim_directory(directory)
        except UsageError:
            return False
        return True

    for number in range(20):
        with ThreadPoolExecutor(8) as pool:
            assert 1 == sum(pool.map(lambda _: claimed(place / f"x{number}"), range(8)))  # noqa: B023  it has ended


def test_to_go_on_takes_no_option_that_it_would_not_heed(place, tmp_path):
    """--dry-run submits nothing; what is in the script is changed there; the file's defaults are for new ones."""
    assert 0 == submit("-t", "9:00:00", "--array", "1-3", "--", "python", "train.py", "{task}").exit_code
    words = ["--continue", ".holdfast/train-1"]
    for more in (["--array", "3"], ["--lead", "5"], ["--retries", "9"], ["--setup", "true"], ["--run", "x"]):
        is_refused(place, [*words, *more], f"{more[0]} cannot be changed on the way")
    assert 1 == len((tmp_path / "seen").read_text().splitlines())
    text = (place / ".holdfast/train-1/job.sh").read_text()
    result = submit(*words, "--dry-run", "--mem", "4G")
    assert (0, "--mem=4G") == (result.exit_code, directives(result.stdout)[-1])
    assert text == (place / ".holdfast/train-1/job.sh").read_text()
    assert 1 == len((tmp_path / "seen").read_text().splitlines())
    (place / "holdfast.toml").write_text('[submit]\nlead = 9\n[submit.sbatch]\ntime = "10"\noutput = "x"\n')
    assert 0 == submit(*words).exit_code
    assert text == (place / ".holdfast/train-1/job.sh").read_text()


def test_an_option_of_an_interpreter_is_no_script(place):
    """Its value stands where a script might: `julia -t 4 fit.jl` is not refused for want of a file called 4."""
    for words in ("julia -t 4 fit.jl", "bash -o pipefail a.sh", "perl -I lib a.pl", "python -Z 3 a.py", "julia -p 2 a"):
        assert script_file(words.split()) is None, words
    for words in ("python -u a.py", "python -OO -X dev a.py", "bash -ex a.py", "bash a.py", "Rscript --vanilla a.py"):
        assert "a.py" == script_file(words.split()) or "-e" in words, words


def test_names_of_any_length_and_form_are_names_of_directories(place):
    """A name is cut where a directory's could not hold it."""
    for name in ("x" * 400, "é" * 300, "a/b/../c d", "..", "-x", "\u2028", "line\tbreak"):
        result = submit("-t", 60, f"--job-name={name}", "--", "python", "train.py")
        assert 0 == result.exit_code, (name, result.output)
    assert 7 == len(list((place / ".holdfast").glob("*/job.sh")))
    assert not list(place.parent.glob("*/job.sh"))


def test_settings_of_the_user_for_squeue_do_not_hide_jobs(place, monkeypatch):
    """SQUEUE_PARTITION and its like would: a job that runs would be submitted again."""
    (place.parent / "bin/squeue").write_text(
        '#!/bin/sh\n[ -z "$SQUEUE_PARTITION" ] && echo "1|N/A|RUNNING|None|n1|1|/w|job.sh"\n'
    )
    monkeypatch.setenv("SQUEUE_PARTITION", "debug")
    assert ["1"] == [each.job for each in slurm.read_queue()]


def test_a_script_with_odd_line_breaks_is_changed_in_its_own_line():
    """A form feed, and what Unicode calls a line break, end no line of a script."""
    text = "#!/bin/bash\n# a\x0cb\u2028c\x85d\n#SBATCH --time=10 --mem=1G  # why\n#SBATCH -p long\nexec a\n"
    changed = sbatch.with_options(text, [Option("time", "20")])
    assert (
        "#!/bin/bash\n# a\x0cb\u2028c\x85d\n#SBATCH --mem=1G\n#SBATCH -p long\n#SBATCH --time=20\nexec a\n" == changed
    )


def test_an_sbatch_that_did_not_answer_may_have_submitted(place):
    """It is said, with how to look: whoever just tries again may have two jobs. Nobody knows the id of the first."""
    (place.parent / "bin/sbatch").write_text("#!/bin/sh\necho 'sbatch: error: Socket timed out' >&2; exit 1\n")
    result = submit("-t", 60, "--", "python", "train.py")
    assert 6 == result.exit_code
    assert "it may have been submitted all the same: look with holdfast status .holdfast/train-1" in result.stderr
    assert "if it was not: holdfast submit --continue .holdfast/train-1" in result.stderr
    (place.parent / "seen.queue").write_text(
        f"12|N/A|PENDING|None||N/A|{place}|train.sh\n4712|N/A|PENDING|None||N/A|/|{place}/.holdfast/train-1/job.sh\n"
    )
    is_refused(place, ["--continue", ".holdfast/train-1"], "its job 4712 is PENDING")
    told = invoke("status", ".holdfast/train-1", "--json")
    assert ("queued", "4712") == tuple(json.loads(told.stdout)["runs"][0][name] for name in ("state", "job"))


def test_a_job_of_another_cluster_is_refused(place, monkeypatch):
    """Its number means another job here, or none: nobody would see it, and --continue would submit it twice."""
    assert 0 == submit("-t", 60, "--", "python", "train.py").exit_code
    for words in (["-M", "far"], ["--clusters=far"], ["--cluster", "far"]):
        is_refused(place, [*words, "-t", 60, "--", "python", "train.py"], "--clusters: jobs are submitted to")
        is_refused(place, ["--continue", ".holdfast/train-1", *words], "--clusters: jobs are submitted to")
    for name in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "far")
        is_refused(place, ["-t", 60, "--", "python", "train.py"], f"{name}: jobs are submitted to")
        monkeypatch.delenv(name)


def test_a_sweep_beyond_what_any_slurm_numbers_is_refused_before_it_is_counted(place):
    """A slip of the keyboard must not fill the memory."""
    is_refused(place, ["--array", "1-999999999", "-t", 60, "--", "python", "train.py", "{task}"], "4000000")


def test_a_commands_file_is_read_as_the_shell_reads_it(place):
    """CRLF, tabs, a # in a word, odd line breaks, quoted operators: line n of the copy is task n's command."""
    lines = [
        "python train.py --a 'x;y' --b a#b\t--c é",
        "python train.py --sep ';' --or \"|\"",
        "python train.py a\x0cb\u2028c",
    ]
    (place / "c.txt").write_bytes("\r\n".join(["# first", *lines, ""]).encode())
    assert 0 == submit("-t", 60, "--commands", "c.txt").exit_code
    kept = (place / ".holdfast/c-1/commands.txt").read_bytes().decode().split("\n")
    assert [*lines, ""] == kept
    text = (place / ".holdfast/c-1/job.sh").read_text()
    shown = text[text.index("export HOLDFAST") :].replace("exec ", "printf '%s\\n' ")
    around = {"SLURM_ARRAY_TASK_ID": "2", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", shown], env=around, capture_output=True, text=True, check=True)
    assert ["--sep", ";", "--or", "|"] == done.stdout.split("\n")[-5:-1]


def test_commands_with_a_launcher_are_not_launched_twice(place):
    """`srun srun` would start each program as often as there are tasks, squared."""
    (place / "c.txt").write_text("srun python train.py\n")
    is_refused(place, ["-t", 60, "--ntasks", 4, "--commands", "c.txt"], "srun")


@pytest.mark.parametrize("run", ["a\nb", "x%j"])
def test_a_directory_that_no_script_can_name_is_refused(place, run):
    """A line break would begin a line of code; of a %j Slurm would make another path."""
    is_refused(
        place, ["-t", 60, "-o", "out", "--run", run, "--", "python", "train.py"], "a batch script cannot name it"
    )
