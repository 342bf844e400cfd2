"""Draws what `make demo` prints as docs/demo.svg:  make demo 2>&1 | .venv/bin/python docs/picture.py"""

import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

SHOWN = re.compile(r"holdfast: drill: |ATTEMPT|\d+ +\S+ +step|damaged|last metrics|compared|kills|resumed|identical")
STYLES = {"identical": "bold green", "ATTEMPT": "bold", "damaged": "yellow"}  # by a line's first word


def main() -> None:
    console = Console(record=True, width=140, file=sys.stderr)
    console.print("$ make demo", style="bold")
    for line in sys.stdin.read().splitlines():
        if SHOWN.match(line):
            console.print(Text(line.removeprefix("holdfast: drill: "), STYLES.get(line.split()[0], "")))
    svg = console.export_svg(title="holdfast drill")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # the reader's own fixed-width font will do
    Path(__file__).with_name("demo.svg").write_text(re.sub(r"Fira Code", "monospace", svg))


if __name__ == "__main__":
    main()
