"""ARCHITECTURE.md draws four walks through the code; a trace finds the same rooms."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import walks  # noqa: E402

LINE = re.compile(r"^    (\w+): (.+)$", re.MULTILINE)


def drawn(page):
    """Of each walk on the page, its rooms, and the pairs of a room and the one that calls it."""
    for walk in re.findall(r":\n\n((?:    \w+: .+\n)+)", page):
        pairs = {(above, room) for above, rooms in LINE.findall(walk) for room in rooms.split()}
        yield {room for _, room in pairs}, {pair for pair in pairs if pair[0] != "script"}


def test_the_walks_are_drawn_as_a_trace_finds_them():
    """Each room that a walk enters, and no other; the room above it does call it."""
    found = walks.measure(ROOT)
    trees = list(drawn((ROOT / "ARCHITECTURE.md").read_text()))
    assert len(trees) == len(found) == 4
    for name, (rooms, pairs) in zip(found, trees, strict=True):
        calls = {(source, target) for source, target, _ in found[name]["moves"]}
        assert (name, set(found[name]["rooms"])) == (name, rooms)
        assert (name, set()) == (name, pairs - calls)
