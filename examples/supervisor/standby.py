"""Kill the digits example under `holdfast run`, with and without `--standby`: how long until its next step?

python examples/supervisor/standby.py        # one pair
python examples/supervisor/standby.py 5      # five, and the median
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast import Store, journal

DIGITS = Path(__file__).parents[1] / "digits/train.py"
WAITS_S = 120


def waited(condition):
    """What the condition gives, as soon as it gives something."""
    until = time.monotonic() + WAITS_S
    while not (found := condition()):
        if time.monotonic() > until:
            raise TimeoutError("it never came")
        time.sleep(0.02)
    return found


def first_steps(run):
    """When each attempt's first step was done, in Unix seconds."""
    try:
        found = [next(log.newest("first_step"), None) for log in journal.logs(run)]
    except FileNotFoundError:  # the next attempt has just moved them
        return []
    return [event["time"] for event in found if event is not None]


def seconds_to_the_next_step(place, *options):
    """Train in `place`, kill the training once, and measure."""
    words = [sys.executable, "-m", "holdfast", "run", "--run", "kept", "--retries", "9", *options]
    (place / "train.py").write_text(
        DIGITS.read_text().replace("EPOCHS, BATCH, TRAIN = 12", "EPOCHS, BATCH, TRAIN = 999")
    )
    errors = place / "errors"
    with errors.open("wb") as err:
        ours = subprocess.Popen([*words, "--", sys.executable, "train.py"], cwd=place, stdout=err, stderr=err)
    try:
        run = place / "runs/digits"
        waited(lambda: (run / "attempts").is_dir() and first_steps(run) and Store(run).checkpoints())
        if options:
            waited(lambda: b"a standby has done the imports" in errors.read_bytes())
        (start,) = (event for event in journal.read(place / "kept/supervisor.jsonl") if event["event"] == "start")
        killed = time.time()
        os.kill(start["pid"], signal.SIGKILL)
        waited(lambda: len(first_steps(run)) == 2)
        return first_steps(run)[1] - killed
    finally:
        ours.terminate()
        ours.wait()


def main():
    ratios, cold, standby = [], [], []
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        for options, found in (((), cold), (("--standby",), standby)):
            with tempfile.TemporaryDirectory() as place:
                found.append(seconds_to_the_next_step(Path(place), *options))
        ratios.append(cold[-1] / standby[-1])
        print(f"cold start {cold[-1]:.2f} s, standby {standby[-1]:.2f} s", flush=True)
    print(
        f"{len(ratios)} pairs: cold start {statistics.median(cold):.2f} s, standby {statistics.median(standby):.2f} s"
    )
    print(f"{statistics.median(ratios):.1f} times sooner, at least {min(ratios):.1f}")


if __name__ == "__main__":
    main()
