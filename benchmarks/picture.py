"""Draws the tables of saves and restores as docs/speed.svg: bars on a logarithmic scale, readable at 800 pixels."""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import restore
import save
from harness import HERE, Column, samples
from targets import Lines, at_size, read

WIDTH, LEFT, RIGHT, THICK = 800, 190, 90, 11
STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 } .small { font-size: 11px; fill: #57606a } .ours { font-weight: 600 }
.grid { stroke: #d0d7de; stroke-width: 1 } .limit { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 4 3 }
.wait { fill: #8c959f } .durable { fill: #d0d7de } .ours.wait { fill: #1a7f37 } .ours.durable { fill: #8ddb9f }
.red { fill: #cf222e; font-size: 11px }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .grid { stroke: #3d444d }
  .limit { stroke: #ff7b72 } .red { fill: #ff7b72 }
  .wait { fill: #9198a1 } .durable { fill: #4b535d } .ours.wait { fill: #3fb950 } .ours.durable { fill: #1f6f36 }
}
"""


class Bar(NamedTuple):
    kind: str  # "wait" or "durable": its colour
    key: str


class Scale(NamedTuple):
    """Seconds at the ends of a logarithmic scale."""

    least: float
    most: float

    def place(self, value: float) -> float:
        share = math.log(value / self.least) / math.log(self.most / self.least)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def decades(self) -> list[float]:
        return [
            10.0**power for power in range(math.ceil(math.log10(self.least)), math.floor(math.log10(self.most)) + 1)
        ]


class Panel(NamedTuple):
    title: str
    lines: Lines
    raw: str  # the contender whose figures are the limits
    bars: list[Bar]
    limits: dict[str, str]  # the raw contender's key -> what the line is called


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=str(HERE / "results"))
    parser.add_argument("--picture", default=str(HERE.parent / "docs" / "speed.svg"))
    given = parser.parse_args()
    saves, restores = (at_size(read(Path(given.out) / f"{table}.jsonl")) for table in ("save", "restore"))
    panels = [
        Panel("saved: the loop waits (upper bar), durable (lower); logarithmic", saves, save.RAW,
              [Bar("wait", "wait_s"), Bar("durable", "durable_s")],
              {"wait_s": "one memcpy", "durable_s": "raw write"}),
        Panel("restored, cold, into live memory; logarithmic", restores, restore.RAW, [Bar("wait", "cold_s")],
              {"cold_s": "raw read"}),
    ]  # fmt: skip
    Path(given.picture).write_text(draw([panel for panel in panels if panel.lines]))


def draw(panels: list[Panel]) -> str:
    body, top = [], 0.0
    for panel in panels:
        drawn, height = part(panel, top)
        body += drawn
        top += height
    size = f'viewBox="0 0 {WIDTH} {top:.0f}" width="{WIDTH}" height="{top:.0f}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="Holdfast beside its peers, in seconds">'
    )
    return "\n".join([head, f"<style>{STYLE}</style>", *body, "</svg>"]) + "\n"


def part(panel: Panel, top: float) -> tuple[list[str], float]:
    """One panel that begins at `top`, and its height."""
    rows = [name for name in dict.fromkeys(line["contender"] for line in panel.lines) if name != panel.raw]
    rows = [name for name in rows if middle(panel.lines, name, panel.bars[0].key) is not None]
    pitch, begin = THICK * len(panel.bars) + 8, top + 58
    end = begin + pitch * len(rows)
    scale = scale_of(panel, rows)
    size = panel.lines[0]["size_mib"]
    label = f"{size / 1024:g} GiB" if size >= 1024 else f"{size} MiB"
    drawn = [f'<text class="title" x="8" y="{top + 20:.0f}">{label} {escape(panel.title)}</text>']
    for value in scale.decades():
        drawn.append(upright("grid", scale.place(value), begin - 4, end))
        drawn.append(text("small", "middle", scale.place(value), end + 15, seconds(value)))
    for number, name in enumerate(rows):
        drawn += row(panel, scale, name, begin + pitch * number)
    for number, (key, what) in enumerate(panel.limits.items()):
        value = middle(panel.lines, panel.raw, key) or scale.least
        side, gap = ("end", -4) if number < len(panel.limits) - 1 else ("start", 4)
        drawn.append(upright("limit", scale.place(value), begin - 14, end))
        drawn.append(text("red", side, scale.place(value) + gap, begin - 12, f"{what} {seconds(value)}"))
    return drawn, end - top + 34


def scale_of(panel: Panel, rows: list[str]) -> Scale:
    """From half the smallest figure to the largest."""
    names = [(name, bar.key) for name in rows for bar in panel.bars] + [(panel.raw, key) for key in panel.limits]
    found = [value for name, key in names if (value := middle(panel.lines, name, key)) is not None]
    return Scale(min(found) / 2, max(found))


def row(panel: Panel, scale: Scale, name: str, top: float) -> list[str]:
    ours = " ours" if name.startswith("Holdfast") else ""
    drawn = [text(ours.strip(), "end", LEFT - 8, top + THICK * len(panel.bars) / 2 + 4, name)]
    for number, bar in enumerate(panel.bars):
        value = middle(panel.lines, name, bar.key)
        if value is not None:
            y, end = top + THICK * number, scale.place(value)
            drawn.append(
                f'<rect class="{bar.kind}{ours}" x="{LEFT}" y="{y:.1f}" width="{end - LEFT:.1f}" height="{THICK}"/>'
            )
            drawn.append(text("small", "start", end + 4, y + 9.5, seconds(value)))
    return drawn


def text(kind: str, anchor: str, x: float, y: float, words: str) -> str:
    return f'<text class="{kind}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def upright(kind: str, x: float, top: float, bottom: float) -> str:
    return f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'


def middle(lines: Lines, name: str, key: str) -> float | None:
    found = samples(lines, name, Column("", key))
    return statistics.median(found) if found else None


def seconds(value: float) -> str:
    """Three digits, in the unit that is nearest below."""
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
    unit, size = next((each for each in units if value >= each[1] * 0.9995), units[-1])
    return f"{float(f'{value / size:.3g}'):g} {unit}"


if __name__ == "__main__":
    main()
