"""Two checkouts of Holdfast beside each other: what a start, a resume, a save and commands cost each.

    python benchmarks/pairs.py OLD NEW [--rounds 9]       # roots of the checkouts, for one and the same Python

The two take turns, each time in a new process. The figures are medians of the processor's time in milliseconds, and the
median of new by old over the pairs: on a busy machine the time on a clock says less. Modules are compiled beforehand.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = {"8 tensors of 32 MiB": (8, 8 << 20), "2,000 tensors of 8 kB": (2000, 2000)}
PROGRAM = """
import os, sys, time, torch
from holdfast import Last, Run
what, place, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
state = {f"w{number}": torch.full((size,), 1.0) for number in range(count)}
took, began = [], time.process_time()
with Run(place, {"state": state}, keep=Last(2), every=None) as run:
    for step in run.steps(10**6):
        if what == "start":
            took.append(time.process_time() - began)
            break
        for each in state.values():
            each.add_(1)
        if step % 3 == 1:
            began = time.process_time()
            run.save()
        elif step % 3 == 2:
            run.wait()
            took.append(time.process_time() - began)
        if len(took) == 5:
            break
    print(sorted(took)[len(took) // 2] * 1e3, flush=True)
    os._exit(0)
"""


def environment(root: Path, place: Path) -> dict[str, str]:
    """Modules of that checkout, compiled apart from the other's."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(root / "src"), "PYTHONPYCACHEPREFIX": str(place / root.name)}


def cpu_ms(command: list[str], around: dict[str, str]) -> float:
    """What a whole process took of the processor."""
    text = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
    text += "u = resource.getrusage(resource.RUSAGE_CHILDREN); print((u.ru_utime + u.ru_stime) * 1e3)"
    return float(
        subprocess.run([sys.executable, "-c", text, *command], env=around, check=True, capture_output=True).stdout
    )


def turn(root: Path, place: Path) -> dict[str, float]:
    """One of everything, of one checkout."""
    around, found = environment(root, place), {}
    found["import"] = cpu_ms([sys.executable, "-c", "from holdfast import Run"], around)
    for named, (count, size) in SIZES.items():
        run = place / "run"
        for what in ("save", "start"):
            shutil.rmtree(run, ignore_errors=True) if what == "save" else None
            command = [sys.executable, "-c", PROGRAM, what, str(run), str(count), str(size)]
            ended = subprocess.run(command, env=around, check=True, capture_output=True)
            found[f"{'save' if what == 'save' else 'resume'}, {named}"] = float(ended.stdout.split()[-1])
        for verb in ("ls", "show", "verify"):
            if verb == "ls" or count > 100:
                found[f"{verb}, {named}"] = cpu_ms([sys.executable, "-m", "holdfast", verb, str(run)], around)
        fresh = [sys.executable, "-c", PROGRAM, "start", str(place / "fresh"), str(count), str(size)]
        shutil.rmtree(place / "fresh", ignore_errors=True)
        ended = subprocess.run(fresh, env=around, check=True, capture_output=True)
        found[f"fresh start, {named}"] = float(ended.stdout.split()[-1])
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("old", type=Path)
    asked.add_argument("new", type=Path)
    asked.add_argument("--rounds", type=int, default=9)
    options = asked.parse_args()
    roots = [options.old.resolve(), options.new.resolve()]
    pairs: list[list[dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as place:
        for root in roots:
            turn(root, Path(place))  # compiles
        for number in range(options.rounds):
            order = roots if number % 2 else roots[::-1]
            found = {root: turn(root, Path(place)) for root in order}
            pairs.append([found[root] for root in roots])
            print(f"{number + 1} of {options.rounds}", file=sys.stderr)
    rows = {}
    for what in pairs[0][0]:
        old, new = ([pair[which][what] for pair in pairs] for which in (0, 1))
        ratio = statistics.median(late / early for early, late in zip(old, new, strict=True))
        rows[what] = [round(statistics.median(old), 1), round(statistics.median(new), 1), round(ratio, 3)]
        print(f"{what:32} {rows[what][0]:8.1f} {rows[what][1]:8.1f} {ratio:7.3f}")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
