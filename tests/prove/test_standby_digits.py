"""`holdfast run --standby` around examples/digits, which imports torch and scikit-learn: the same bits, and sooner."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from holdfast import Store
from supervised import Supervised, until

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = (EXAMPLES / "digits/train.py").read_text()
KILLS = 5
UNSEEDED = ("holdfast/rng/python", "holdfast/rng/numpy")
STEP = "                ema.update_parameters(model)\n"
# It must not end before the last standby has come, however busy the machine is.
SLOW = """\
                import os, time
                time.sleep(2 if "KILLED" in os.environ and not os.path.exists("enough") else 0)
"""


def bits(run):
    """The digest of each leaf at the end. The script does not seed Python and NumPy: there no two runs agree."""
    leaves = Store(run).latest().manifest.leaves
    return {name: leaf.digest for name, leaf in leaves.items() if not name.startswith(UNSEEDED)}


def test_digits_killed_five_times_has_the_same_bits(tmp_path):
    """Each next start was a standby."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for place in (whole, killed):
        place.mkdir()
        (place / "train.py").write_text(DIGITS.replace(STEP, STEP + SLOW))
    subprocess.run([sys.executable, "train.py"], cwd=whole, check=True, capture_output=True)
    with Supervised(killed, [sys.executable, "train.py"], "--standby", "--retries", KILLS, KILLED="1") as it:
        for number in range(1, KILLS + 1):
            until(
                lambda number=number: it.said.count("a standby has done the imports") == number,
                "a standby",
                patience_s=300,
            )
            os.kill(it.events("start")[-1]["pid"], signal.SIGKILL)
            until(lambda number=number: len(it.events("start")) == number + 1, "the next start")
        (killed / "enough").touch()
        assert 0 == it.end(), it.said
    assert [None, *KILLS * [True]] == [event.get("standby") for event in it.events("start")]
    assert bits(whole / "runs/digits") == bits(killed / "runs/digits")


def test_the_next_step_comes_at_least_five_times_sooner(record_property):
    """The example itself: three pairs on this machine, whatever else it does; no backoff is in it."""
    words = [sys.executable, EXAMPLES / "supervisor/standby.py", "3"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    record_property("table: kill to next step", said.splitlines()[-1])
    assert float(re.findall(r"([\d.]+) times sooner", said)[0]) >= 5
