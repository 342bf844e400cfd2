"""What takes hours: all of tests/prove (every cut of every loader, every crash point), then kills by the thousand.

    python tests/soak.py --hours 8 --out docs/soak.json      # series of kills, with other seeds, until the time is up
    python tests/soak.py --only "every phase" --hours 0.4 --out docs/soak.json
    python tests/soak.py --count 2 --out docs/soak.json      # two tests of each file, two kills of each series

After each kind the result is written: the commit, the date, the seed, how many cases of each kind there were, and what
failed. A case that ended without an answer is a failure; a test that was skipped is named.
"""

import argparse
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import digits_kills
import tally
from workers import PR_SET_PDEATHSIG

TESTS = Path(__file__).parent
ROOT = TESTS.parent
RANK_KILLS, DRILL_KILLS, DIGITS_KILLS = 100, 20, 250  # of a round
NO_TESTS = 5  # pytest's exit code


class Outcome(NamedTuple):
    case: str
    problem: str = ""  # what failed
    tried: bool = True  # not skipped, and it came to what was to be tried
    phase: str = ""  # in which a process was killed


def run(words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        preexec_fn=_ends_with_its_parent,
    )


def _ends_with_its_parent() -> None:
    """A soak that is killed leaves nothing running."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def of_tests(file: Path, seed: int, count: int | None) -> Iterator[Outcome]:
    """Tests of a file: all, or `count` at random."""
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-q", "-o", "junit_family=xunit1"]
    chosen = [str(file)]
    if count is not None:
        listed = [line for line in run([*words, "--collect-only", *chosen]).stdout.splitlines() if "::" in line]
        chosen = random.Random(seed).sample(listed, min(count, len(listed))) or chosen
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        done = run([*words, f"--junit-xml={report}", *chosen], HOLDFAST_SEED=str(seed))
        if done.returncode == NO_TESTS:
            yield Outcome(f"{file.stem} has no test here", tried=False)
        elif done.returncode not in (0, 1):
            yield Outcome(file.stem, f"pytest ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
        if not report.exists():
            return
        for case in ET.parse(report).iter("testcase"):
            problems = [each.get("message", "") for kind in ("failure", "error") for each in case.iter(kind)]
            skipped = next(iter(case.iter("skipped")), None) is not None
            yield Outcome(f"{case.get('classname')}::{case.get('name')}", "; ".join(problems), tried=not skipped)


def of_ranks(seed: int, count: int | None) -> Iterator[Outcome]:
    """One rank is killed at an instant that the seed chooses; a line for each."""
    done = run([str(TESTS / "rank_kills.py"), str(count or RANK_KILLS), "--seed", str(seed)])
    for line in done.stdout.splitlines():
        yield Outcome(line.strip(), tried="came to no such instant" not in line)
    if done.returncode:
        yield Outcome(f"rank_kills.py --seed {seed}", done.stderr[-500:] or f"it ended with {done.returncode}")


def of_drills(seed: int, count: int | None) -> Iterator[Outcome]:
    """The example's training, killed by the drill at places of its choice."""
    kills = count or DRILL_KILLS
    options = ["drill", "--kills", str(kills), "--signals", "KILL,TERM", "--seed", str(seed), "--json", "--"]
    train = str(ROOT / "examples" / "digits" / "train.py")
    done = run(["-c", "from holdfast.cli import main; main()", *options, sys.executable, train])
    found = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    verdict = found.get("verdict", done.stderr[-500:] or "no report")
    problem = "" if verdict == "identical" and done.returncode == 0 else verdict
    for attempt in found.get("attempts", []):
        if attempt["signal"]:
            yield Outcome(f"drill --seed {seed}, attempt {attempt['attempt']}", problem, tried=attempt["proven"])
    if not found.get("attempts"):
        yield Outcome(f"drill --seed {seed}", problem or "it killed nothing")


def of_digits(seed: int, count: int | None) -> Iterator[Outcome]:
    """The example's training, killed in all of its phases; a line for each."""
    kills = count or DIGITS_KILLS
    done = run([str(TESTS / "digits_kills.py"), str(kills), "--seed", str(seed)])
    struck = [json.loads(line) for line in done.stdout.splitlines()]
    for number, each in enumerate(struck):
        case = f"digits_kills.py --seed {seed}, #{number} in {each['phase']}"
        yield Outcome(case, each["problem"], phase=each["phase"])
    phases = Counter(each["phase"] for each in struck)
    for phase in digits_kills.PHASES:
        if phases[phase] < int(digits_kills.SHARE * kills * 0.9):
            yield Outcome(f"digits_kills.py --seed {seed}", f"only {phases[phase]} kills in {phase}", tried=False)
    if done.returncode or len(struck) < kills:
        yield Outcome(f"digits_kills.py --seed {seed}", done.stderr[-500:] or f"{len(struck)} kills", tried=False)


SERIES = {
    "kills of one of several ranks": of_ranks,
    "kills of the example by the drill": of_drills,
    "kills in every phase of the example": of_digits,
}


def kinds(number: int) -> dict[str, Callable[[int, int | None], Iterable[Outcome]]]:
    """What round `number` tries: the first one all of tests/prove, and each one both series of kills."""
    files = sorted((TESTS / "prove").glob("test_*.py")) if number == 0 else []
    return {**{file.stem: partial(of_tests, file) for file in files}, **SERIES}


def soaked(seed: int, hours: float, count: int | None, only: str = "") -> Iterator[dict[str, Any]]:
    """What was found so far, after each kind whose name has `only`."""
    began, number, found = time.monotonic(), 0, dict[str, dict[str, Any]]()
    described = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, check=True)
    while number == 0 or (count is None and time.monotonic() - began < hours * 3600):
        chosen = [each for each in kinds(number).items() if only in each[0]]
        if not chosen:
            return
        for name, kind in chosen:
            outcomes = list(kind(seed + number, count)) or [Outcome(name, "no case ran", tried=False)]
            told = found.setdefault(name, {"cases": 0, "untried": [], "failed": []})
            told["cases"] += sum(each.tried for each in outcomes)
            told["untried"] += [each.case for each in outcomes if not each.tried]
            told["failed"] += [f"{each.case}: {each.problem}" for each in outcomes if each.problem]
            if phases := Counter(told.get("phases", {})) + Counter(each.phase for each in outcomes if each.phase):
                told["phases"] = dict(phases.most_common())
            yield {
                "commit": described.stdout.decode().strip(),
                "date": datetime.now(UTC).date().isoformat(),
                "seed": seed,
                "minutes": round((time.monotonic() - began) / 60, 1),
                "count": count,
                "only": only,
                "kinds": found,
            }
        number += 1


def line(found: dict[str, Any]) -> str:
    """The result in a sentence, as docs/evidence.md has it."""
    told = found["kinds"]
    tests = sum(kind["cases"] for name, kind in told.items() if name not in SERIES)
    series = "".join(f", {told[name]['cases']:,} {name}{_spread(told[name])}" for name in SERIES if name in told)
    size = f"a small one, --count {found['count']}" if found["count"] else "whole"
    size = f"only {found['only']!r}" if found["only"] else size
    return (
        f"{found['date']}, commit {found['commit']}, seed {found['seed']}, {found['minutes']} minutes ({size}): "
        f"{tests} tests of tests/prove{series}. Not tried: {_all(told, 'untried')}; failed: {_all(told, 'failed')}."
    )


def _spread(kind: dict[str, Any]) -> str:
    phases = kind.get("phases", {})
    return f" ({len(phases)} phases, each {min(phases.values())} times at least)" if phases else ""


def _all(told: dict[str, Any], what: str) -> int:
    return sum(len(kind[what]) for kind in told.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=8)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="WORD", help="only the kinds whose names have it")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    if not any(chosen.only in name for name in kinds(0)):
        parser.error(f"--only {chosen.only}: no kind has that in its name; they are {', '.join(kinds(0))}")
    page = ROOT / "docs" / "evidence.md"
    found: dict[str, Any] = {}
    for found in soaked(chosen.seed, chosen.hours, chosen.count, chosen.only):
        chosen.out.write_text(json.dumps(found, indent=2) + "\n")
        before, mark, after = page.read_text().partition("<!-- soak -->\n")
        page.write_text(f"{before}{mark}{line(found)}\n{after.partition(chr(10))[2]}")
        if chosen.out.resolve() == tally.SOAKED:
            tally.write_page()
        print(line(found), flush=True)
    sys.exit(any(kind["failed"] for kind in found["kinds"].values()))


if __name__ == "__main__":
    main()
