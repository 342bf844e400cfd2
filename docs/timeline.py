"""Draws a drill as docs/timeline.svg:  holdfast demo --json | .venv/bin/python docs/timeline.py

A bar for the undisturbed run, and one for each attempt of the killed run, over the same steps. It is read at 360 px.
"""

import json
import sys
from pathlib import Path
from typing import Any

LEFT, WIDTH, ROW = 88, 262, 30
DONE, LOST, END = "#3f51b5", "#e57373", "#2e7d32"


def drawn(report: dict[str, Any]) -> str:
    """The picture of one report of `holdfast drill --json`."""
    steps = report["steps"]

    def x(step: int) -> float:
        return LEFT + WIDTH * step / steps

    def bar(row: int, begin: int, end: int, colour: str) -> str:
        return (
            f'<rect x="{x(begin):.1f}" y="{y(row) - 12}" width="{x(end) - x(begin):.1f}" height="14" fill="{colour}"/>'
        )

    def y(row: int) -> int:
        return 24 + ROW * row

    def text(left: float, row: int, words: str, more: str = "") -> str:
        return f'<text x="{left:.1f}" y="{y(row)}" {more}>{words}</text>'

    attempts, parts = report["attempts"], [text(4, 0, "undisturbed"), bar(0, 0, steps, DONE)]
    for row, (attempt, after) in enumerate(zip(attempts, [*attempts[1:], None], strict=True), start=1):
        begin, reached = attempt["restored_step"], attempt["reached"]
        kept = after["restored_step"] if after else reached
        parts += [
            text(4, row, f"attempt {attempt['attempt']}"),
            bar(row, begin, kept, DONE),
            bar(row, kept, reached, LOST),
        ]
        if attempt["signal"]:
            inside = reached > steps / 2  # of the bar: there is no room behind it
            beside, more = (
                (x(kept) - 4, 'fill="white" text-anchor="end"') if inside else (x(reached) + 4, f'fill="{LOST}"')
            )
            parts.append(text(beside, row, f"✗ {attempt['signal']} at step {reached}", more))
    row = len(attempts) + 1
    told = f"{report['verdict']}: {report['states_compared']} states, to the last bit"
    parts.append(text(4, row, told, f'fill="{END}" font-weight="bold"'))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 {y(row) + 12}" font-size="13"'
    words = f"{len(attempts) - 1} kills, then {report['verdict']}"
    return (
        f'{head} font-family="sans-serif" fill="#808080" role="img" aria-label="{words}">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_name("timeline.svg").write_text(drawn(json.load(sys.stdin)))
