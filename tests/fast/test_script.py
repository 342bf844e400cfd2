"""The batch script that submit writes: its text, that bash can read it, and that lint has nothing to say."""

import shlex
import subprocess
from pathlib import Path

import pytest

from holdfast.batch import sbatch
from holdfast.cluster.script import JobRequest, name_for_command, script_text
from holdfast.errors import UsageError
from holdfast.lint import lint_script

GOLDEN = Path(__file__).parents[1] / "golden" / "submit"


def order(command, options="", directory=".holdfast/train", **more):
    return JobRequest(shlex.split(command), directory, sbatch.parse_options(shlex.split(options)), **more)


ORDERS = {
    "plain": order("python train.py --lr 1e-3", "--time 12:00:00 -p long --chdir=/home/ada/cats"),
    "setup": order(
        "python train.py",
        "--gpus-per-task=1 -c 4 --mem 16G -t 0:15:00",
        setup=["module load anaconda/3", "conda activate pytorch"],
        stage=["/network/datasets/cifar 10/", "/network/datasets/cifar.tar.gz"],
        lead_s=300,
    ),
    "chain": order("gmx mdrun -s run.tpr", "-t 12:00:00", "runs/md", chain=10, supervisor=["--app=gromacs"]),
    "srun": order("python train.py", "-N 2 --ntasks-per-node=4 -c 4 --gpus-per-node=4 -t 60", stage=["/data/big"]),
    "torchrun": order("torchrun --nproc-per-node=4 train.py", "-N 2 --gpus-per-node=4 -t 60"),
    "torchrun-alone": order(
        "torchrun --standalone --nproc-per-node=4 train.py", "--gpus-per-node=4 -t 60 --no-requeue"
    ),
}


@pytest.mark.parametrize("case", ORDERS)
def test_the_script_is_the_one_on_record(case):
    """Word for word: what people read and Slurm gets changes on purpose only. Bash reads it, lint finds nothing."""
    text = script_text(ORDERS[case])
    assert (GOLDEN / f"{case}.sh").read_text() == text
    assert b"" == subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=True).stderr
    assert [] == lint_script(text)


def test_the_words_of_the_command_reach_the_program_as_they_are():
    """Nothing in them is the shell's."""
    words = ["printf", "%s\n", "$HOME", "a b", "it's", "*", "`id`", "--run", 'say "x"', ""]
    _, _, last = script_text(JobRequest(words, "d")).partition("exec holdfast run --run d --lead=120 -- ")
    done = subprocess.run(["bash", "-c", last], capture_output=True, text=True, check=True)
    assert words[2:] == done.stdout.split("\n")[:-1]


def test_what_would_undo_our_own_lines_is_refused():
    """Two hands on one option would undo each other. After a line break the rest would be a command."""
    for option in ("--signal=USR1", "-a 1-3", "--open-mode=truncate", "--wrap=x", "--test-only", "-W"):
        with pytest.raises(UsageError, match="written by holdfast submit; say"):
            script_text(order("python a.py", option))
    with pytest.raises(UsageError, match="line break"):
        script_text(order("python a.py", "--comment='a\nrm x'"))
    with pytest.raises(UsageError, match="two of them are called data"):
        script_text(JobRequest(["true"], "d", stage=["/a/data", "/b/data/"]))


def test_a_later_option_takes_the_place_of_an_earlier_one_under_whatever_name():
    """holdfast.toml says --time, the command line -t."""
    first, second = sbatch.parse_options(["--time=10", "-p", "long"]), sbatch.parse_options(["-t", "5"])
    assert ["--time=5", "--partition=long"] == [str(option) for option in sbatch.merge_options(first, second)]


def test_a_job_is_called_after_its_script_or_its_program():
    """What squeue shows, and where things are kept. Who starts a program gives it no name."""
    names = {
        "python -u src/train.py --x y.py": "train",
        "./my.prog a": "my",
        "bash run all.sh": "all",
        "gmx mdrun": "gmx",
        "srun gmx_mpi mdrun -s run.tpr": "gmx_mpi",
        "srun -n 4 -c2 --mpi=pmix -l /opt/bin/gmx_mpi mdrun": "gmx_mpi",
        "mpirun -np 4 --bind-to core gmx_mpi mdrun": "gmx_mpi",
        "srun --ntasks 4 --exclusive gmx_mpi": "gmx_mpi",
        "srun": "srun",
    }
    for command, expected in names.items():
        assert expected == name_for_command(shlex.split(command)), command


def test_time_limits_are_read_as_sbatch_reads_them():
    """Minutes come first, unless there are hours or days."""
    limits = {"1": 60, "90:30": 5430, "1:2:3": 3723, "2-3": 183600, "2-3:4": 183840, "2-3:4:5": 183845}
    for text, expected in (limits | {"0": float("inf"), "UNLIMITED": float("inf")}).items():
        assert expected == sbatch.time_limit_s(sbatch.parse_options([f"--time={text}"])), text


# The copy to the node's own disk --------------------------------------------------------------------------------


def staged(tmp_path, source, before=""):
    """The script's own staging, run by bash in a folder of its own; what is there afterwards."""
    text = script_text(JobRequest(["true"], "d", stage=[str(source)]))
    body = text[text.index("stage() {") : text.index("# exec")]
    node = tmp_path / "node"
    done = subprocess.run(
        ["bash", "-c", f"{before}\n{body}"],
        env={"SLURM_TMPDIR": str(node), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    files = sorted(path for path in node.rglob("*") if path.is_file() and path.suffix != ".whole")
    return done.returncode, {path.relative_to(node).as_posix(): path.read_text() for path in files}


def test_a_data_set_is_copied_once_and_again_when_any_part_of_it_is_newer(tmp_path):
    """A mark, made before the copy, says what it is as new as."""
    source = tmp_path / "my data"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "a").write_text("1")
    assert (0, {"my data/deep/a": "1"}) == staged(tmp_path, source)
    copy = tmp_path / "node" / "my data" / "deep" / "a"
    copy.write_text("untouched")
    assert (0, {"my data/deep/a": "untouched"}) == staged(tmp_path, source)
    (source / "deep" / "a").write_text("2")
    assert (0, {"my data/deep/a": "2"}) == staged(tmp_path, source)


def test_a_copy_that_was_cut_short_is_made_again(tmp_path):
    """Killed in the middle of cp: the next start does not take the torn file for the data set."""
    source = tmp_path / "set.tar"
    source.write_text("whole")
    cut = 'cp() { echo -n wh > "${@: -1}"; kill -KILL $$; }'
    code, files = staged(tmp_path, source, before=cut)
    assert (-9, "wh") == (code, files["set.tar"])
    assert "whole" == staged(tmp_path, source)[1]["set.tar"]


def test_a_data_set_that_is_not_there_ends_the_job(tmp_path):
    """Before the program starts without it."""
    code, files = staged(tmp_path, tmp_path / "nowhere")
    assert code == 1
    assert not files.get("nowhere")


def test_a_cluster_without_a_folder_of_the_jobs_own_says_so(tmp_path):
    """Nothing is copied to where nobody tidies up."""
    text = script_text(JobRequest(["true"], "d", stage=["/data"]))
    done = subprocess.run(
        ["bash", "-c", text], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert done.returncode in {1, 127}
    assert "SLURM_TMPDIR: is not set on this cluster" in done.stderr


def test_torchrun_is_known_behind_srun_and_as_a_module():
    """It would die of the notice there just the same."""
    for command in ("srun --ntasks-per-node=1 torchrun --nnodes=2 a.py", "python -m torch.distributed.run a.py"):
        said = script_text(order(command, "-N 2 -t 60"))
        assert "export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR2 PET_SHUTDOWN_TIMEOUT=120" in said
        assert "--signal=B:USR2@120" in said
