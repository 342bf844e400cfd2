"""Runs benchmarks that print JSON lines, and keeps what they print: benchmarks/figures.py shuffle scale"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import HERE, machine, say


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--out", default=str(HERE / "results"))
    given = parser.parse_args()
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    for table in given.tables:
        script = HERE / f"{table}.py"
        if not script.exists():
            say(f"{table}: no such table")
            continue
        say(f"{table} ...")
        done = subprocess.run([sys.executable, str(script)], check=True, stdout=subprocess.PIPE, text=True)
        keep(out, table, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")])


def keep(out: Path, table: str, lines: list[dict[str, Any]]) -> None:
    head = {"table": table, **machine(".")}
    (out / f"{table}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [head, *lines]))
    rows = [f"| {line['figure']} | {number(line)} | {line['unit']} |" for line in lines if "figure" in line]
    text = "\n".join(["| figure | median (smallest to largest) | unit |", "|---|---|---|", *rows]) + "\n"
    (out / f"{table}.md").write_text(text)
    print(text)


def number(line: dict[str, Any]) -> str:
    runs = line.get("runs") or [line["value"]]
    low, middle, high = (
        f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}" for value in (min(runs), line["value"], max(runs))
    )
    return middle if low == high else f"{middle} ({low} to {high})"


if __name__ == "__main__":
    main()
