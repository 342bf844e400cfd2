"""Signs: reads a command's signs of life for the judge of hangs.

The steps of a `Run` come first. Without one: the file that the user named, or else the output.
"""

from __future__ import annotations

import os
from pathlib import Path

from .. import scan
from ..children import processes, steps
from ..children.steps import SlotView
from .hang import UNKNOWN, Observation, PhaseRule

OUTPUT, FILE = "its output", "the file that it touches"
_REGULAR = 30  # changes after which an output counts as regular
_RARE = PhaseRule()

PHASES = {
    **dict.fromkeys(steps.PHASES, _RARE),
    **dict.fromkeys((steps.PHASES[steps.OPENING], steps.PHASES[steps.FIRST]), PhaseRule(UNKNOWN)),
    steps.PHASES[steps.STEP]: PhaseRule(1.0, after=steps.PHASES[steps.FIRST], least=1),
    steps.PHASES[steps.OVER]: PhaseRule(judged=False),  # the time after the run is not judged
    OUTPUT: PhaseRule(1.0, least=_REGULAR, silent=True),
    FILE: PhaseRule(1.0, least=1),
}


def observe_ranks(seen: list[SlotView]) -> list[Observation]:
    """Return an observation for each rank."""
    return [
        Observation(
            each.slot,
            each.beats,
            steps.PHASES[each.phase],
            [(steps.PHASES[phase], seconds) for phase, seconds in each.ended],
            excused=each.debugged or processes.is_traced(each.pid),
        )
        for each in seen
    ]


def observe_file(path: Path) -> list[Observation]:
    """Return an observation of a file. A file that does not exist has shown no sign of life yet."""
    try:
        facts = os.stat(path)
        count = hash((facts.st_mtime_ns, facts.st_size, facts.st_ino))
    except OSError:
        count = 0
    return [Observation(FILE, count, FILE)]


def describe_silence(phase: str, file: Path | None) -> str:
    """Return as text what shows no sign of life, for a command without steps."""
    if phase == FILE and file is not None and not scan.exists(file):
        return f"{file} is not there"
    return f"{phase} does not change"


def observe_output(volume: int, *, traced: bool = False) -> list[Observation]:
    """Return an observation of the output, of which `volume` bytes were seen; `traced`: by a
    debugger.
    """
    return [Observation(OUTPUT, volume, OUTPUT, excused=traced)]
