"""Collect a tree's figures in one JSON file, and write the page that compares two trees.

    python tools/quality.py collect ROOT WORK --out FILE       weighs ROOT, takes the walks, adds what lies in WORK
    python tools/quality.py page BEFORE [AFTER] --out PAGE     Markdown; without AFTER its column stays open

WORK holds what reach.py and sample_mutants.py wrote. `collect --walks FILE` takes the output of `walks.py --json`
instead of measuring it again.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import walks
import weight
from mutations import Key, all_mutants, match, room

OUTCOMES = ("killed", "survived", "capped", "unreached", "no verdict")
ALIVE = ("survived", "capped", "unreached")
Facts = dict[str, Any]


def collect(root: Path, work: Path, walked: Path | None) -> Facts:
    """All figures of a tree."""
    reach = json.loads((work / "reach.json").read_text())
    results = work / "mutants.jsonl"
    mutants = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    traced = json.loads(walked.read_text()) if walked else walks.measure(root)
    names = {each["test"] for each in reach["tests"]}
    return {
        "weight": {
            name: asdict(weight.weigh(root / path)) for name, path in (("src", "src/holdfast"), ("tests", "tests"))
        },
        "text": asdict(weight.read(root)),
        "walks": {name: {**each, "file_moves": walks.total(each["file_moves"])} for name, each in traced.items()},
        "tests": {
            "collected": collected(root),
            "measured": len(reach["tests"]),
            "functions": len({name.partition("[")[0] for name in names}),
            "cpu_s": round(sum(each["cpu_s"] for each in reach["tests"]), 1),
            "outcomes": Counter(each["outcome"] for each in reach["tests"]),
        },
        "possible_mutants": Counter(room(each.key.file) for each in all_mutants(root / "src" / "holdfast")),
        "coverage": json.loads((work / "coverage.json").read_text()),
        "mutants": [{name: each[name] for name in each if name not in {"room", "reason", "cpu_s"}} for each in mutants],
    }


def collected(root: Path) -> int:
    """How many tests pytest finds in a tree.

    Raises:
        RuntimeError: it does not say.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    said = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"(\d+) tests collected", said.stdout)
    if said.returncode or not found:
        raise RuntimeError(f"pytest --collect-only in {root} ended with {said.returncode}:\n{said.stdout[-1000:]}")
    return int(found[1])


def dumped(facts: Facts) -> str:
    """JSON with one mutant on a line, so that two versions can be compared."""
    mutants = ",\n  ".join(json.dumps(each, ensure_ascii=False) for each in facts["mutants"])
    rest = json.dumps({name: each for name, each in facts.items() if name != "mutants"}, indent=None)
    return f'{rest[:-1]},\n "mutants": [\n  {mutants}\n ]}}\n'


def rows(facts: Facts) -> dict[str, str]:
    """The closing table's rows: what is measured, and the figure."""
    found: dict[str, str] = {}
    for name in ("src", "tests"):
        each = facts["weight"][name]
        found |= {
            f"tokens of {name}": f"{each['tokens']:,}",
            f"files of {name}": str(each["files"]),
            f"files of {name} under 50 lines": str(each["files_under_50_lines"]),
            f"lines of {name} over 110 characters": str(each["lines_over_110"]),
            f"lines of {name} over 120 characters": str(each["lines_over_120"]),
            f"docstring lines per function of {name}": f"{each['docstring_lines_per_function']:.2f}",
        }
    src = facts["weight"]["src"]
    found["class names of src that occur more than once"] = str(len(src["class_names_repeated"]))
    found["own modules that a module imports: mean"] = f"{src['imports_mean']:.2f}"
    found["own modules that a module imports: most"] = f"{src['imports_max']} ({src['imports_most']})"
    found["sentences over 30 words in README and docs"] = (
        f"{facts['text']['over_30_words']} of {facts['text']['sentences']}"
    )
    for name, each in facts["walks"].items():
        moves = walks.total(each["moves"])
        found[f"walk {name}: files, rooms, moves between rooms, moves between files"] = (
            f"{len(each['files'])}, {len(each['rooms'])}, {moves}, {each['file_moves']}"
        )
    found["tests collected"] = f"{facts['tests']['collected']:,}"
    found["tests measured in process: items, functions, CPU seconds under coverage"] = (
        f"{facts['tests']['measured']}, {facts['tests']['functions']}, {facts['tests']['cpu_s']}"
    )
    sums = Counter[str]()
    for each in facts["coverage"].values():
        sums.update(each)
    found["lines covered"] = share(sums["covered_lines"], sums["num_statements"])
    found["branches covered"] = share(sums["covered_branches"], sums["num_branches"])
    outcomes = Counter(each["outcome"] for each in facts["mutants"])
    for name in OUTCOMES:
        found[f"mutants: {name}"] = f"{outcomes[name]} of {len(facts['mutants'])}"
    return found


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def by_room(facts: Facts) -> list[str]:
    """One row for each room: mutants by outcome, lines and branches covered."""
    counts = Counter((room(each["key"][0]), each["outcome"]) for each in facts["mutants"])
    lines = [
        f"| room | possible mutants | {' | '.join(OUTCOMES)} | lines covered | branches covered |",
        "|---" * (4 + len(OUTCOMES)) + "|",
    ]
    none = dict.fromkeys(("covered_lines", "num_statements", "covered_branches", "num_branches"), 0)
    for name in sorted({*facts["coverage"], *(each for each, _ in counts)}):
        covered = facts["coverage"].get(name, none)
        cells = [str(facts["possible_mutants"].get(name, 0)), *(str(counts[name, each]) for each in OUTCOMES)]
        cells.append(share(covered["covered_lines"], covered["num_statements"]))
        cells.append(share(covered["covered_branches"], covered["num_branches"]))
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def listed(facts: Facts, outcome: str) -> list[str]:
    """One list item for each mutant with this outcome."""
    lines = []
    for each in sorted(facts["mutants"], key=lambda each: each["key"]):
        if each["outcome"] == outcome:
            key = Key(*each["key"])
            text = f"{key.operator}: {key.source} -> {each['becomes']}".replace("`", "'")
            ran = f", {each['ran']} of {each['reached']} tests" if each["reached"] else ""
            more = f", number {key.nth + 1}" if key.nth else ""
            lines.append(f"- {key.file}:{each['line']} {key.function}{more}{ran}: `{text}`")
    return lines or ["None."]


def lost(before: Facts, after: Facts, renames: dict[str, str]) -> list[str]:
    """The mutants that were killed before, and are alive or gone after."""
    there = {Key(*each["key"]): each for each in after["mutants"]}
    lines = []
    for key in (Key(*each["key"]) for each in before["mutants"] if each["outcome"] == "killed"):
        new = match(key, there, renames)
        outcome = there[new]["outcome"] if new else "gone"
        if outcome != "killed":
            lines.append(f"- `{key}`: {outcome}" + (f" as `{new}`" if new and new != key else ""))
    return lines or ["None."]


def page(before: Facts, after: Facts | None, renames: dict[str, str], words: str) -> str:
    """The whole page: `words`, the closing table, the rooms, the lists."""
    old, new = rows(before), rows(after) if after else {}
    parts = [words.rstrip(), "", "## In all", "", "| measured | before | after |", "|---|---|---|"]
    parts += [f"| {name} | {old.get(name, '')} | {new.get(name, '')} |" for name in dict.fromkeys((*old, *new))]
    for title, facts in (("before", before), ("after", after)):
        if facts:
            parts += ["", f"## Rooms, {title}", "", *by_room(facts)]
            for outcome in OUTCOMES[1:]:
                parts += ["", f"### {outcome.capitalize()}, {title}", "", *listed(facts, outcome)]
    if after:
        parts += ["", "## Killed before, not killed after", "", *lost(before, after, renames)]
    return "\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("collect", "page"))
    parser.add_argument("first", type=Path, help="collect: the tree; page: the figures before")
    parser.add_argument("second", type=Path, nargs="?", help="collect: the folder WORK; page: the figures after")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--walks", type=Path, help="collect: the walks as walks.py --json printed them")
    parser.add_argument("--words", type=Path, help="page: a Markdown file that the page begins with")
    parser.add_argument("--renames", type=Path, help="page: JSON: old names of files and functions, and the new ones")
    asked = parser.parse_args()
    if asked.action == "collect":
        if asked.second is None:
            parser.error("collect needs the folder WORK")
        asked.out.write_text(dumped(collect(asked.first.resolve(), asked.second.resolve(), asked.walks)))
        return 0
    after = json.loads(asked.second.read_text()) if asked.second else None
    renames = json.loads(asked.renames.read_text()) if asked.renames else {}
    words = asked.words.read_text() if asked.words else "# Quality, before and after\n"
    asked.out.write_text(page(json.loads(asked.first.read_text()), after, renames, words))
    return 0


if __name__ == "__main__":
    sys.exit(main())
