"""ARCHITECTURE.md draws four walks through the code; a trace finds the same rooms."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import walks  # noqa: E402

LINE = re.compile(r"^    ([│├└─ ]*)(\w+) {2,}\S", re.MULTILINE)


def drawn(page):
    """Of each tree on the page, its rooms, and the pairs of a room and the one it stands below."""
    for tree in re.findall(r":\n\n((?:    [│├└─ ]*\w+ {2,}.*\n)+)", page):
        above, pairs = [], set()
        for bars, room in LINE.findall(tree):
            above[len(bars) // 3 :] = [room]
            pairs |= {(above[-2], room)} if bars else set()
        yield set(re.findall(r"^    [│├└─ ]*(\w+)", tree, re.MULTILINE)), pairs


def test_the_walks_are_drawn_as_a_trace_finds_them():
    """Each room that a walk enters, and no other; the room above it does call it."""
    found = walks.measure(ROOT)
    trees = list(drawn((ROOT / "ARCHITECTURE.md").read_text()))
    assert len(trees) == len(found) == 4
    for name, (rooms, pairs) in zip(found, trees, strict=True):
        calls = {(source, target) for source, target, _ in found[name]["moves"]}
        assert (name, set(found[name]["rooms"])) == (name, rooms)
        assert (name, set()) == (name, pairs - calls)
        assert len(pairs) >= 3
