"""The examples of clusters on a real Slurm: what their sites have, their submission, and the end of their time."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
EXAMPLES = Path(__file__).parents[1] / "examples"


def site(slurm, place, example, **more):
    """The example in `place`, and what its cluster has: modules, conda, programs, folders."""
    shutil.copytree(EXAMPLES / example, place, dirs_exist_ok=True)
    (place / "bin").mkdir()
    names = ("SCRATCH", "SLURM_TMPDIR")
    for name in names:
        (place / name.lower()).mkdir()
    return {
        **slurm.environment,
        **{name: str(place / name.lower()) for name in names},
        "PATH": f"{place / 'bin'}:{BIN}:{os.environ['PATH']}",
        "BASH_FUNC_module%%": "() { :; }",
        "BASH_FUNC_conda%%": "() { :; }",
        "PYTHONWARNINGS": "ignore",  # more workers than this machine has cores
        **more,
    }


def sbatch(place, environment, *words):
    done = subprocess.run(
        ["sbatch", "--parsable", *words], check=False, cwd=place, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def text(path):
    return path.read_text() if path.exists() else ""


def time_is_up(slurm, job, lead_s):
    """As Slurm says it, and not up to 30 s later: the end is near, and here is the notice."""
    slurm.ask("scontrol", "update", f"JobId={job}", f"EndTime=now+{lead_s + 80}")  # the limit of the next start, too
    # For a task of an array it is sent, and scancel says all the same that it should try again later.
    subprocess.run(
        ["scancel", "--batch", "--signal=USR1", job], check=False, env=slurm.environment, capture_output=True
    )


def identical(one, other):
    done = subprocess.run([BIN / "holdfast", "diff", one, other], check=False, capture_output=True, text=True)
    return done.returncode == 0 or done.stdout + done.stderr
