"""How checkpoint libraries behave when something fails: `make trust` writes docs/trust.md and the raw trials.

python benchmarks/trust/run.py [--only LIBRARY] [--fault NAME] [--full] [--seed N] [--jobs N]
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests")]

import page  # noqa: E402
from trials import FAULTS, UNSTRUCK, Bench, Outcome, Worker  # noqa: E402

ENVIRONMENTS = {each: ROOT / f".venv-{each}" for each in ("frameworks", "bench")} | {"tests": ROOT / ".venv"}
DEFAULT = "frameworks"
FACTS = """
import json, {name} as it
planted = [each if isinstance(each, str) else sorted(each) for each in getattr(it, "PLANTED", ())]
facts = {{"name": it.NAME, "version": str(it.VERSION), "practice": it.PRACTICE, "link": it.LINK}}
print(json.dumps(facts | {{"promises": dict(it.PROMISES), "planted": planted}}))
"""
AT_REST, OF_PROCESSES, FULL = 100, 10, 10  # trials; with --full ten times as many
MOST_TEXT = 160  # characters of what a library says, that are kept of a trial
COST_ROWS, COST_ROUNDS = 1 << 18, 5  # 64 MiB


def facts_of(name: str, path: Path) -> dict[str, Any]:
    """What the library's file says of itself, read in its environment."""
    text = path.read_text()
    named = [line.split('"')[1] for line in text.splitlines() if line.startswith("ENVIRONMENT = ")]
    environment = named[0] if named else "tests" if path.parent.name == "planted" else DEFAULT
    python = ENVIRONMENTS[environment] / "bin/python"
    if not python.exists():
        raise SystemExit(f"{python} is missing: make .venv-{environment}/.ready")
    done = subprocess.run(
        [python, "-c", FACTS.format(name=name)], env=environ(path), capture_output=True, text=True, check=True, cwd=HERE
    )
    return json.loads(done.stdout.splitlines()[-1]) | {"python": str(python), "lines": len(text.splitlines())}


def environ(path: Path) -> dict[str, str]:
    paths = [str(HERE), str(HERE / "libraries"), str(path.parent), str(ROOT / "tests")]
    quiet = {
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu",
        "HOLDFAST_QUIET": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **quiet}


@contextmanager
def opened(name: str, path: Path, facts: dict[str, Any], place: str) -> Iterator[Bench]:
    """The library, imported by a process whose forks are the workers."""
    folder = Path(tempfile.mkdtemp(prefix="trust-", dir=place))
    socket = folder / "zygote"
    zygote = subprocess.Popen(
        [facts["python"], str(ROOT / "tests/zygote.py"), str(socket), str(os.getpid()), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ(path),
        cwd=folder,
    )
    try:
        if zygote.stdout is None or zygote.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{name}: its imports failed")
        yield Bench(name, [sys.executable, "-S", str(ROOT / "tests/zygote_client.py"), str(socket)], folder)
    finally:
        zygote.kill()
        zygote.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def struck(name: str, path: Path, facts: dict[str, Any], wanted: argparse.Namespace, say: Any) -> list[dict[str, Any]]:
    """All trials of one library."""
    trials = list[dict[str, Any]]()
    with opened(name, path, facts, wanted.place) as bench:
        for fault in FAULTS:
            if wanted.fault and fault.name not in wanted.fault:
                continue
            began, count = time.monotonic(), (AT_REST if fault.at_rest else OF_PROCESSES) * (FULL if wanted.full else 1)
            count = wanted.trials or count
            found = [one_trial(bench, fault, number, wanted.seed) for number in range(count)]
            trials += found
            told = page.counted_verdicts(found)
            say(f"{facts['name']}: {fault.name}: {told} ({time.monotonic() - began:.0f} s)")
    return trials


def one_trial(bench: Bench, fault: Any, number: int, seed: int) -> dict[str, Any]:
    """A trial; its seed is a function of the fault and its number, so that each library meets the same draws."""
    drawn = zlib.crc32(f"{seed} {fault.name} {number}".encode())
    for attempt in range(5):  # what is not struck is tried with another draw
        outcome: Outcome = fault.trial(bench, random.Random(drawn + attempt))  # noqa: S311  draws of faults
        if outcome.verdict != UNSTRUCK:
            break
    facts = {"library": bench.name, "fault": fault.name, "trial": number, "seed": drawn, **outcome._asdict()}
    facts["text"] = re.sub(r"/\S*/", "", " ".join(outcome.text.split()))[:MOST_TEXT]  # of a path its name alone
    return {key: value for key, value in facts.items() if value or key == "trial"}


def cost(bench: Bench) -> dict[str, Any]:
    """Of a state of 64 MiB: seconds of a save until it is reported as saved, of a restart, and bytes on disk."""
    saves, loads, size = [], [], 0
    for _ in range(COST_ROUNDS):
        answers = []
        for last in (1, 3):
            again = bench.fresh("cost")
            again.mkdir()
            answers.append(bench.train(again, last=last, rows=COST_ROWS)["took_s"])
            size = sum(path.stat().st_size for path in again.rglob("*") if path.is_file())
            if last == 3:
                loads.append(Worker(bench, "resume", again, last=3, rows=COST_ROWS).go().wait()["took_s"])
            shutil.rmtree(again)
        saves.append((answers[1] - answers[0]) / 2)
    return {"save_s": sorted(saves), "load_s": sorted(loads), "bytes": size}


def main() -> None:
    files = {path.stem: path for folder in ("libraries", "planted") for path in sorted((HERE / folder).glob("*.py"))}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], choices=sorted(files), help="this library's file alone; may be repeated"
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        choices=[each.name for each in FAULTS],
        help="this fault alone; likewise",
    )
    parser.add_argument("--trials", type=int, help="so many of each fault, whatever it is")
    parser.add_argument("--full", action="store_true", help="ten times as many trials")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=max(1, min(2, os.cpu_count() or 1)))
    parser.add_argument("--out", type=Path, default=None, help="the folder of trust.jsonl and trust.json")
    wanted = parser.parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("strace is missing: faults of processes are injected by it")
    wanted.place = tempfile.mkdtemp(prefix="holdfast-trust-")
    chosen = {name: path for name, path in files.items() if not wanted.only or name in wanted.only}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {line}", flush=True)

    facts, trials = {name: facts_of(name, path) for name, path in chosen.items()}, list[dict[str, Any]]()
    try:
        with ThreadPoolExecutor(wanted.jobs) as pool:
            done = [pool.submit(struck, name, path, facts[name], wanted, say) for name, path in chosen.items()]
            try:
                for future in done:
                    trials += future.result()
            except KeyboardInterrupt:  # the threads would go on to the end of their libraries
                shutil.rmtree(wanted.place, ignore_errors=True)
                print("interrupted", file=sys.stderr, flush=True)
                os._exit(130)  # the imported libraries end with this process
        for name, each in facts.items():  # one after the other, when nothing else runs
            if not each["planted"] and not wanted.fault:
                with opened(name, chosen[name], each, wanted.place) as bench:
                    each["cost"] = cost(bench)
                say(f"{each['name']}: cost")
    finally:
        shutil.rmtree(wanted.place, ignore_errors=True)
    whole_run = not wanted.only and not wanted.fault and not wanted.trials
    out = wanted.out or (HERE if whole_run else Path(tempfile.gettempdir()))
    (out / "trust.jsonl").write_text("".join(json.dumps(each) + "\n" for each in trials))
    kept = {name: {key: value for key, value in each.items() if key != "python"} for name, each in facts.items()}
    whole = {"seed": wanted.seed, "took_s": round(time.monotonic() - began), "libraries": kept}
    (out / "trust.json").write_text(json.dumps(whole, indent=1) + "\n")
    for line in page.planted_lines(facts, trials):
        print(line)
    print(f"{len(trials):,} trials of {len(facts)} libraries in {whole['took_s']} s: {out / 'trust.jsonl'}")
    if page.unfailed(facts, trials) and not wanted.fault:
        raise SystemExit("a planted fault was not found: the harness is broken")
    if out == HERE:
        page.write(whole, trials, page.PAGE, page.PICTURE)


if __name__ == "__main__":
    main()
