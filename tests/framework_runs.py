"""Trainings of frameworks, killed at chosen events and started again until they are done.

A script of tests/frameworks/scripts takes the run's directory and writes `result.json` into its working directory: what
must be the same with and without kills. It calls `struck.event`. A zygote, which has imported the framework, forks
each attempt.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

FRAMEWORKS = Path(__file__).parent / "frameworks"
SCRIPTS = FRAMEWORKS / "scripts"
AGAIN = 75


class Trained(NamedTuple):
    exits: list[int]  # of each attempt
    result: str  # the text of result.json
    said: str  # what all attempts printed


def trained(python, script, place, *arguments, strikes=(), most=8, **environment):
    """Run SCRIPT until it is done. Attempt number i is struck by `strikes[i]`, as in "batch:7:TERM".

    Each strike must have hit. After the last, nothing but a stop's 75 is followed by another attempt.
    """
    place.mkdir(parents=True, exist_ok=True)
    exits, said = [], ""
    for number in range(most):
        strike = strikes[number] if number < len(strikes) else ""
        done = subprocess.run(
            [*python, str(SCRIPTS / f"{script}.py"), *arguments],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), **environment, "STRIKE": strike},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=300,
            check=False,
        )
        exits.append(done.returncode)
        said += done.stdout
        if strike:
            assert "struck: " in done.stdout, f"{strike} did not hit; exit {done.returncode}\n{done.stdout[-3000:]}"
            assert done.returncode == (-9 if strike.endswith("KILL") else AGAIN), done.stdout[-3000:]
        elif done.returncode != AGAIN:
            assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-5000:]}"
            return Trained(exits, (place / "result.json").read_text(), said)
    raise AssertionError(f"not done after {most} attempts: exits {exits}\n{said[-3000:]}")


def pinned(lock):
    """The versions that a lock of tests/frameworks pins, by the normal names of the packages."""
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (FRAMEWORKS / lock).read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}
