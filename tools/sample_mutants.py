"""Run a seeded sample of mutants of the whole package against the tests that reach each changed line.

    python tools/sample_mutants.py list ROOT [--count 400] [--seed 11]      prints the sample
    python tools/sample_mutants.py run ROOT WORK [--minutes M]    judges it; goes on where an earlier call stopped
    python tools/sample_mutants.py run ROOT WORK --like FILE [--renames R]    judges the mutants of an earlier table

`run` needs WORK/reach.json, which `reach.py` writes, and the environment of `reach.py`. The results are in
WORK/mutants.jsonl.

For each mutant: the tests that ran its line, quickest first, until the first failure, or until the mutant has used
CAP_S seconds of CPU. The file is changed in a copy of the package, and a fork of this process, which has imported
torch, NumPy and pytest but no module of holdfast, runs the tests. The outcomes:

    killed      a test failed by name; it fails again alone with the mutant, and passes alone without it
    survived    all tests that reach the line passed
    capped      those that fit CAP_S passed; `ran` of `reached` says how many
    unreached   no test that was measured runs the line
    no verdict  a timeout, a crash, a failed import: no test failed by name

A change in a line that runs while its module is imported is asked of all tests that run anything of that file.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mutations import Key, Mutant, all_mutants, match, room, sample
from sessions import HEAVY, Test, Zygote

COUNT, SEED = 400, 11
CAP_S = 60.0
CONTROLS = 40  # tests that must pass on the unchanged copy first
# Seconds of the tests in a mutant's first pytest session; each following session has 4 times as many.
FIRST_S, GROWTH = 3.0, 4.0


class Judge:
    """Asks the tests about mutants."""

    def __init__(self, root: Path, work: Path, cap_s: float, heavy: Sequence[str] = HEAVY) -> None:
        reach = json.loads((work / "reach.json").read_text())
        self.zygote = Zygote(root, work, heavy)
        self.cap_s = cap_s
        self.tests = [Test(each["test"], each["cpu_s"], each["wall_s"]) for each in reach["tests"]]
        self.sound = {index for index, each in enumerate(reach["tests"]) if each["outcome"] == "passed"}
        self.lines: dict[str, dict[str, list[int]]] = reach["lines"]
        self.unsound: dict[str, bool] = {}  # a test -> whether it fails alone on the code as it is

    def reaching(self, mutant: Mutant) -> list[Test]:
        """The tests that run the mutant's line, quickest first."""
        lines = self.lines.get(mutant.key.file, {})
        who = set(lines.get(str(mutant.line), ()))
        if not who:  # the middle of a statement may have no line of its own
            who = {each for line in mutant.lines for each in lines.get(str(line), ())}
        if who == {-1}:
            who = {each for found in lines.values() for each in found}
        return sorted((self.tests[each] for each in who & self.sound), key=lambda test: (test.cpu_s, test.name))

    def control(self, mutants: Sequence[Mutant]) -> None:
        """Some tests of the sample must pass on the copy while nothing is changed.

        Raises:
            RuntimeError: they do not; then no outcome of a mutant would say anything.
        """
        first = {each for mutant in mutants for each in self.reaching(mutant)[:1]}
        some = sorted(first, key=lambda test: (test.cpu_s, test.name))[:CONTROLS]
        said = self.zygote.ask(some, self.cap_s)
        if said.failed or not said.verdict or said.passed < len(some):
            raise RuntimeError(f"unchanged: {said.passed} of {len(some)} tests passed; {said.failed} {said.reason}")
        print(f"unchanged  {said.cpu_s:6.1f} s {said.passed}/{len(some)} tests passed", flush=True)

    def judge(self, mutant: Mutant) -> dict[str, Any]:
        """The facts of one mutant."""
        reached = self.reaching(mutant)
        facts: dict[str, Any] = {
            "key": list(mutant.key),
            "line": mutant.line,
            "room": room(mutant.key.file),
            "becomes": mutant.text,
            "reached": len(reached),
            "ran": 0,
            "cpu_s": 0.0,
        }
        self.zygote.mutate(mutant)
        try:
            self._ask(mutant, reached, facts)
        finally:
            self.zygote.restore(mutant)
        facts["cpu_s"] = round(facts["cpu_s"], 2)
        return facts

    def _ask(self, mutant: Mutant, reached: list[Test], facts: dict[str, Any]) -> None:
        facts["outcome"] = "survived" if reached else "unreached"
        for tests in batches(reached):
            batch = tests
            while batch:
                left_s = self.cap_s - facts["cpu_s"]
                if left_s <= 0:
                    facts["outcome"] = "capped"
                    return
                said = self.zygote.ask(batch, left_s)
                facts["cpu_s"] += said.cpu_s
                facts["ran"] += said.passed
                if not said.verdict:
                    facts |= {"outcome": "no verdict", "reason": said.reason[-300:]}
                    return
                if said.failed:
                    if self._confirmed(mutant, said.failed, facts):
                        facts |= {"outcome": "killed", "test": said.failed}
                        return
                    facts.setdefault("unsure", []).append(said.failed)
                    place = next(index for index, each in enumerate(batch) if each.name == said.failed)
                    batch = batch[place + 1 :]
                    continue
                if said.passed < len(batch):
                    facts["outcome"] = "capped"
                    return
                break

    def _confirmed(self, mutant: Mutant, name: str, facts: dict[str, Any]) -> bool:
        """Whether the test fails alone with the mutant and passes alone without it."""
        test = [next(each for each in self.tests if each.name == name)]
        again = self.zygote.ask(test, self.cap_s)
        facts["cpu_s"] += again.cpu_s
        if again.failed != name:
            return False
        if name not in self.unsound:
            self.zygote.restore(mutant)
            control = self.zygote.ask(test, self.cap_s)
            self.unsound[name] = not (control.verdict and not control.failed and control.passed == 1)
            self.zygote.mutate(mutant)
        return not self.unsound[name]


def batches(tests: list[Test]) -> Iterator[list[Test]]:
    """The tests in pytest sessions of growing length: most mutants die in the first, which collects few files."""
    batch: list[Test] = []
    limit_s, sum_s = FIRST_S, 0.0
    for each in tests:
        if batch and sum_s + each.cpu_s > limit_s:
            yield batch
            batch, sum_s, limit_s = [], 0.0, limit_s * GROWTH
        batch.append(each)
        sum_s += each.cpu_s + 0.01
    if batch:
        yield batch


def chosen(root: Path, asked: argparse.Namespace) -> list[Mutant]:
    """The seeded sample of a tree; or, with --like, the mutants of an earlier table that this tree still has."""
    everything = all_mutants(root / "src" / "holdfast")
    if not asked.like:
        return sample(everything, asked.count, asked.seed)
    there = {each.key: each for each in everything}
    renames = json.loads(asked.renames.read_text()) if asked.renames else {}
    before = [Key(*each["key"]) for each in json.loads(asked.like.read_text())["mutants"]]
    found = [(key, match(key, there, renames)) for key in before]
    for key in (key for key, new in found if new is None):
        print(f"gone: {key}")
    return [there[new] for _, new in found if new is not None]


def run(judge: Judge, work: Path, wanted: list[Mutant], minutes: float) -> None:
    """Judge what has no result yet."""
    until = time.monotonic() + 60 * minutes
    results = work / "mutants.jsonl"
    known = {tuple(json.loads(line)["key"]) for line in results.read_text().splitlines()} if results.exists() else set()
    left = [each for each in wanted if tuple(each.key) not in known]
    if left:
        judge.control(left)
    for each in left:
        if time.monotonic() > until:
            break
        facts = judge.judge(each)
        with results.open("a") as out:
            print(json.dumps(facts), file=out)
        print(f"{facts['outcome']:10} {facts['cpu_s']:6.1f} s {facts['ran']}/{facts['reached']} {each.key}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("list", "run"))
    parser.add_argument("root", type=Path)
    parser.add_argument("work", type=Path, nargs="?")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--cap", type=float, default=CAP_S, help="CPU seconds for a mutant")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no mutant after this time")
    parser.add_argument("--like", type=Path, help="the JSON table of an earlier tree: judge its mutants")
    parser.add_argument(
        "--renames", type=Path, help="JSON: files and functions of that tree that have other names here"
    )
    parser.add_argument("--heavy", nargs="*", default=HEAVY, help="modules that are imported once, before all forks")
    asked = parser.parse_args()
    root = asked.root.resolve()
    wanted = chosen(root, asked)
    if asked.action == "list":
        for each in wanted:
            print(f"{each.key} (line {each.line}) -> {each.text}")
    elif asked.work is None:
        parser.error("run needs the folder WORK")
    else:
        work = asked.work.resolve()
        run(Judge(root, work, asked.cap, asked.heavy), work, wanted, asked.minutes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
