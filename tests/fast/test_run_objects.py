"""Objects of a run: each changes its own fields only. The rule reads the syntax, and is shown what it must report."""

import ast
from pathlib import Path

import holdfast

ROOM = Path(holdfast.__file__).parent / "run"
ROOMS = (ROOM, ROOM.parent / "stateful", ROOM.parent / "script")
ALLOWED = {
    "self._within.busy",  # a threading.local of the object itself
    "ranks.place",  # public settings of objects of other rooms
}


def assigned_to_others(source: str) -> set[str]:
    """What is assigned to, or deleted, as an attribute of anything but `self` or `cls`, a bare `self.name` excepted."""
    stored = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
    ]
    return {ast.unparse(each) for each in stored if ast.unparse(each.value) not in ("self", "cls")}


def test_nobody_assigns_to_another_objects_fields():
    """A field changes by its own object's verb. The list above has the exceptions; each of them occurs."""
    files = [path for room in ROOMS for path in room.glob("*.py")]
    found = {path: assigned_to_others(path.read_text(encoding="utf-8")) for path in files}
    assert len(found) > 20
    odd = {name: names - ALLOWED for name, names in found.items() if names - ALLOWED}
    assert not odd, odd
    assert ALLOWED == set().union(*found.values())


def test_the_rule_sees_an_offence():
    """Plain, augmented, annotated, unpacked and deleted ones."""
    offences = [
        "session.saves.saved = 1",
        "walks.raised += 1",
        "a.b: int = 1",
        "self.x.y, z = 1, 2",
        "del session.over",
    ]
    for offence in offences:
        assert len(assigned_to_others(offence)) == 1, offence
    assert not assigned_to_others("self.saved = 1\nsaved = session.saves.saved\nsession.saves.ask()")


def test_three_modules_take_the_whole_attempt():
    """Only what begins, saves and ends an attempt takes its `Session`; `run.py` makes it and hands its parts on."""
    takes = {path.stem for path in ROOM.glob("*.py") if "from .session import" in path.read_text(encoding="utf-8")}
    assert takes == {"opening", "safe_point", "finish", "run"}
