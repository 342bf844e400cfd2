"""Kill the two workers of train.py in turn, and compare the last checkpoint with that of an undisturbed training.

pip install "ray[train]"
python examples/ray/killed.py    # three minutes; its last line is `identical`
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLE = Path(__file__).with_name("train.py")
WORKER = r"pid=(\d+)\) world_rank={}"


def reached(place, process):
    """The newest step that was saved; the whole training once the process has ended."""
    saved = [int(each.name.split("-")[1]) for each in place.glob("runs/ray/checkpoints/step-*")]
    return max(saved, default=0) if process.poll() is None else 10**9


def trained(place, kills):
    """The last checkpoint, and what was printed. `kills`: which rank is killed once that step was saved."""
    place.mkdir()
    with (place / "said").open("w") as said:
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        process = subprocess.Popen([sys.executable, EXAMPLE], cwd=place, stdout=said, stderr=said, env=environment)
    for step, rank in kills.items():
        while reached(place, process) < step:
            time.sleep(0.05)
        if process.poll() is not None:
            sys.exit("it ended before it was killed")
        worker = re.findall(WORKER.format(rank), (place / "said").read_text())[-1]
        os.kill(int(worker), signal.SIGKILL)
    if process.wait(300) != 0:
        sys.exit((place / "said").read_text()[-3000:])
    return place / "runs/ray/checkpoints/latest", (place / "said").read_text()


def main():
    """Each rank is killed once; the states of both ranks are the same, but for generators that nobody seeds."""
    with tempfile.TemporaryDirectory() as place:
        undisturbed, _ = trained(Path(place, "undisturbed"), {})
        killed, said = trained(Path(place, "killed"), {40: 1, 90: 0})
        if len(re.findall("resumes at step", said)) != 2:
            sys.exit(f"it did not resume twice:\n{said[-3000:]}")
        unseeded = ("--exempt", "*rng/numpy", "--exempt", "*rng/python")
        diff = [sys.executable, "-m", "holdfast", "diff", *unseeded, undisturbed, killed]
        sys.exit(subprocess.run(diff, check=False).returncode)


if __name__ == "__main__":
    main()
