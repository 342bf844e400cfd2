"""The page: docs/trust.md and its picture, from the raw trials; `python benchmarks/trust/page.py` writes both anew."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from trials import CRASHED, FAULTS, HERE, LOST, OLDER, REFUSED, RIGHT, ROOT, UNSTRUCK, WRONG

PAGE, PICTURE = ROOT / "docs/trust.md", ROOT / "docs/trust.svg"
Trials = Sequence[Mapping[str, Any]]
COLOURS = {
    RIGHT: "#2f9e6e",
    OLDER: "#9fd3b8",
    REFUSED: "#f2c14e",
    CRASHED: "#e08e45",
    LOST: "#b5532a",
    WRONG: "#7a1f3d",
}
OURS = "holdfast_run"
HEAD = """# What checkpoint libraries do when something fails

`make trust` saves with each library as its own documents say, lets one thing fail, and starts again. An oracle
knows what was saved. So each trial has a verdict: what came back is right, or it is not.

| verdict | what came back |
|---|---|
| right | the newest state that was reported as saved, or a newer one, bit for bit |
| older | a whole state of an earlier step |
| refused | an error that names a file or a folder of the checkpoint |
| crashed | an error that names none, or the death of the process |
| lost | nothing: the program would begin anew |
| **silently wrong** | a state that nobody saved, or that of another step than is said |

![each library under each fault](trust.svg)
"""
FOOT = """
## How a fault is done

| fault | how | known from |
|---|---|---|
{faults}

A state has four arrays, 80 KiB, and differs from step to step everywhere. Faults of files strike a copy of what
three saves left, 100 trials each; each byte is as likely to be struck. Faults of processes strike a further save,
or a resume, 10 trials each, by strace. The draws are a function of the fault and the trial's number: each library
meets the same. `--full` makes ten times as many. A fault that cannot be brought about, such as a failing read where
a file is mapped, is left out of the counts.

Three planted libraries have to fail in the way that was planted, or the command fails:

{planted}

## What is unfair

* Holdfast's authors chose the faults, before they saw a result, and wrote how each library is used. **No maintainer
  of another library has seen that practice.** Each file in `benchmarks/trust/libraries` links to the document it
  follows.
* Most of these libraries promise none of this; a cell of a fault that they do not promise says so. A program around
  them may do more: try an older file, keep a digest, take a lock.
* Holdfast was mended for what this command found: one failed read of a journal, or a purge of it, refused the start.
* One state of 80 KiB on one local disk. A large state has more bytes in which a flip matters, and other shares of
  metadata.
* A part was done twice with one seed: 168 trials of files and 504 of processes. All of the first had the same verdict,
  and 501 of the others. The two faults that stop a writer were not among them.
* Faults of processes are system calls that fail or never return. Network file systems fail in other ways.
* A purge removes what a site calls old: everything older than the save. Holdfast's journals of earlier attempts go
  with it.

## Add a library

Write `benchmarks/trust/libraries/yours.py`, at most 60 lines without blank ones, and run `.venv/bin/python
benchmarks/trust/run.py --only yours`. It has the constants `NAME`, `VERSION`, `PRACTICE`, `LINK` and `PROMISES` (a
link for each fault that its documents promise to survive), and two functions:

* `train(folder, first, last, state_of, saved)` goes on from what lies in `folder`. At each step from `first` to
  `last` it saves `state_of(step)`, a dict of float32 arrays. It calls `saved(step)` when the library has reported
  that this is done.
* `resume(folder, like)` returns `(step, arrays)` as a restarted program gets them, or None if it would begin anew.
  `like` has arrays of the right shapes. What the library raises, it raises.

`--only` takes the file's name without `.py`, `--fault` a name of the table; both may be repeated. The trials of such a
run lie in the system's temporary folder, with what the library said.

`joblib_dump.py` is the shortest example, `lightning_trainer.py` one of a trainer. `ENVIRONMENT = "bench"` runs it
with the packages of `.venv-bench` and not of `.venv-frameworks`. The raw trials are in
`benchmarks/trust/trust.jsonl`, one line each."""
HOW = {
    "killed in a save": "SIGKILL at any call that changes files, in one of two further saves",
    "killed between saves": "SIGKILL at a random moment after a save was reported as done",
    "power loss": "of the recorded calls of three saves, any that no fsync covers are undone, and pages torn",
    "flipped bit": "one bit of one file",
    "cut file": "a file ends at a random byte",
    "zeroed page": "4 KiB of a file are zeros",
    "disk full": "ENOSPC at a random write and all later ones",
    "EIO at a write": "one write of a save fails",
    "EIO at a read": "one read of the checkpoint's files fails, at the resume",
    "two writers": "two processes train in one folder at the same time",
    "a writer that wakes late": "a process is stopped in its save, another one goes on and ends, then the first wakes",
    "a stale rename": "a rename of the last save is not seen, everything else is",
    "a purge while saving": "while a save is stopped, all older files are removed",
    "short of memory": "a save of 16 MiB may take up to 48 MiB more, a random limit",
}


def counted_verdicts(trials: Iterable[Mapping[str, Any]]) -> str:
    found = Counter(each["verdict"] for each in trials)
    return ", ".join(f"{count} {verdict}" for verdict, count in found.most_common())


def unfailed(facts: Mapping[str, Any], trials: Trials) -> list[str]:
    """The planted libraries that did not fail as planted."""
    missed = []
    for name, each in facts.items():
        if each["planted"]:
            fault, verdicts = each["planted"]
            if not any(
                one["library"] == name and one["fault"] == fault and one["verdict"] in verdicts for one in trials
            ):
                missed.append(name)
    return missed


def planted_lines(facts: Mapping[str, Any], trials: Trials) -> list[str]:
    missed = unfailed(facts, trials)
    return [
        f"{each['name']}: {'NOT FOUND' if name in missed else 'found'}: {each['planted'][0]}"
        for name, each in facts.items()
        if each["planted"]
    ]


def write(whole: Mapping[str, Any], trials: Trials, target: Path, picture: Path) -> None:
    """Write the page and the picture."""
    facts = {name: each for name, each in whole["libraries"].items() if not each["planted"]}
    counts = {(name, fault.name): Counter[str]() for name in facts for fault in FAULTS}
    for each in trials:
        if each["library"] in facts and each["verdict"] != UNSTRUCK:
            counts[each["library"], each["fault"]][each["verdict"]] += 1
    behind = dict.fromkeys(counts, 0)  # steps, at most, of what was older
    for each in trials:
        if each["verdict"] == OLDER and each["library"] in facts:
            place = each["library"], each["fault"]
            behind[place] = max(behind[place], each["behind"])
    text = [HEAD, *_losing(facts, counts), *_tables(facts, counts, behind), *_costs(facts), *_practices(facts)]
    planted = "\n".join(f"* {line.removeprefix('planted: ')}" for line in planted_lines(whole["libraries"], trials))
    faults = "\n".join(f"| {each.name} | {HOW[each.name]} | {each.source} |" for each in FAULTS)
    text.append(FOOT.format(faults=faults, planted=planted))
    text.append(f"Seed {whole['seed']}, {len(trials):,} trials in {whole['took_s'] / 60:.0f} minutes on two cores.")
    target.write_text("\n".join(text) + "\n")
    picture.write_text(_picture(facts, counts))


def _losing(facts: Mapping[str, Any], counts: Mapping[tuple[str, str], Counter[str]]) -> list[str]:
    """Where another library does better than Holdfast."""
    lines = ["## Where Holdfast does worse than another", ""]
    for fault in FAULTS:
        share = {name: _share(counts[name, fault.name], RIGHT) for name in facts}
        best = max(share, key=lambda name: share[name])
        if share[best] > share[OURS]:
            said = counted_text(counts[OURS, fault.name])
            better = counted_text(counts[best, fault.name])
            lines.append(f"* {fault.name}: Holdfast {said}; {facts[best]['name']} {better}.")
    for key, what in (("save_s", "a save"), ("load_s", "a restart")):
        took = {name: statistics.median(each["cost"][key]) for name, each in facts.items() if "cost" in each}
        best = min(took, key=lambda name: took[name])
        if best != OURS and OURS in took:
            lines.append(
                f"* {what} of 64 MiB takes {took[OURS]:.2f} s, and {took[best]:.2f} s with {facts[best]['name']}."
            )
    return [*lines, ""]


def counted_text(found: Counter[str]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in found.most_common()) or "not struck"


def _share(found: Counter[str], verdict: str) -> float:
    return found[verdict] / found.total() if found.total() else 0.0


def _tables(
    facts: Mapping[str, Any], counts: Mapping[tuple[str, str], Counter[str]], behind: Mapping[tuple[str, str], int]
) -> list[str]:
    kinds = {
        "Integrity: silently wrong": (WRONG,),
        "Availability: refused, crashed or lost": (REFUSED, CRASHED, LOST),
        "Older than what was reported as saved, by how many steps at most": (OLDER,),
    }
    text = []
    for title, verdicts in kinds.items():
        text += [
            f"## {title}",
            "",
            "Of the trials that were struck. In brackets: the library does not promise it.",
            "",
        ]
        text += ["| fault | " + " | ".join(each["name"] for each in facts.values()) + " |"]
        text += ["|---" * (len(facts) + 1) + "|"]
        for fault in FAULTS:
            cells = []
            for name, each in facts.items():
                found = counts[name, fault.name]
                cell = f"{sum(found[verdict] for verdict in verdicts)} of {found.total()}" if found.total() else "–"
                if verdicts == (OLDER,) and found[OLDER]:
                    cell += f", {behind[name, fault.name]} step" + "s" * (behind[name, fault.name] > 1)
                cells.append(cell if fault.name in each["promises"] or cell == "–" else f"({cell})")
            text.append(f"| {fault.name} | " + " | ".join(cells) + " |")
        text.append("")
    return text


def _costs(facts: Mapping[str, Any]) -> list[str]:
    text = ["## Cost", "", "Of a state of 64 MiB, five rounds: median, smallest and largest.", ""]
    text += [
        "| library | save until reported as done, s | restart without imports, s | states on disk after three saves |",
        "|---|---|---|---|",
    ]
    for each in facts.values():
        if "cost" in each:
            cost = each["cost"]
            cells = [
                f"{statistics.median(cost[key]):.2f} ({cost[key][0]:.2f} to {cost[key][-1]:.2f})"
                for key in ("save_s", "load_s")
            ]
            text.append(f"| {each['name']} | {cells[0]} | {cells[1]} | {cost['bytes'] / 2**26:.2f} |")
    return [*text, ""]


def _practices(facts: Mapping[str, Any]) -> list[str]:
    text = ["## How each is used", "", "| library | version | practice |", "|---|---|---|"]
    for each in facts.values():
        link = each["link"].removeprefix("docs/")
        text.append(f"| [{each['name']}]({link}) | {each['version']} | {each['practice']} |")
    return text


def _picture(facts: Mapping[str, Any], counts: Mapping[tuple[str, str], Counter[str]]) -> str:
    """A row for each library, a bar for each fault, a colour for each verdict."""
    left, top, wide, high = 150, 150, 58, 30
    width, height = left + wide * len(FAULTS) + 80, top + high * len(facts) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        "<style>text { font-size: 12px }</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, fault in enumerate(FAULTS):
        x = left + wide * number + 20
        parts.append(f'<text x="{x}" y="{top - 8}" transform="rotate(-45 {x} {top - 8})">{escape(fault.name)}</text>')
    for row, (name, each) in enumerate(facts.items()):
        y = top + high * row
        weight = ' font-weight="bold"' if name == OURS else ""
        parts.append(f'<text x="{left - 8}" y="{y + 19}" text-anchor="end"{weight}>{escape(each["name"])}</text>')
        for number, fault in enumerate(FAULTS):
            found, place = counts[name, fault.name], float(left + wide * number)
            if not found.total():
                parts.append(f'<text x="{place + wide / 2 - 6}" y="{y + 19}" fill="#888888">–</text>')
            for verdict, colour in COLOURS.items():
                part = (wide - 6) * _share(found, verdict)
                if part:
                    parts.append(
                        f'<rect x="{place:.1f}" y="{y + 4}" width="{part:.1f}" height="{high - 8}" fill="{colour}"/>'
                    )
                place += part
    at, y = left, height - 28
    for verdict, colour in COLOURS.items():
        parts.append(f'<rect x="{at}" y="{y}" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{at + 20}" y="{y + 12}">{verdict}</text>')
        at += 40 + 8 * len(verdict)
    return "\n".join([*parts, "</svg>"]) + "\n"


def kept() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the last whole run found: its libraries, and each trial."""
    lines = (HERE / "trust.jsonl").read_text().splitlines()
    return json.loads((HERE / "trust.json").read_text()), [json.loads(line) for line in lines]


if __name__ == "__main__":
    write(*kept(), PAGE, PICTURE)
