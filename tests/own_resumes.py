"""Drills of a trainer that saves and resumes by itself: each kind of loss planted, and right ways of working."""

import os
import shlex
import shutil

from causes import SCRIPTS, TORCH, quiet
from holdfast import drill
from holdfast.drill import DrillOptions, report

# the argument of saves_itself.py -> the kind of loss that the drill has to name
LOSSES = {
    "optimizer": "optimizer",
    "scheduler": "scheduler",
    "torch": "generator",
    "numpy": "generator",
    "python": "generator",
    "twice": "batches twice",
    "skipped": "batches skipped",
    "order": "batches",
    "gradients": "gradients",
    "buffers": "buffers",
    "average": "moving average",
    "best": "best so far",
    "rows": "rows",
    "started over": "started over",
    "more steps": "steps",
    "torn": "torn checkpoint",
    "stuck": "torn checkpoint",  # the program finds its checkpoint by itself, and so the same one each time
}
RIGHT = ["right", "by epochs", "passes over", "accumulates", "noise", "last"]
TABLE = "table: losses of a program's own resume that the drill has named"


def drilled(zygotes, fault, place, seed=1, kills=3):
    """The report of that trainer's drill."""
    python = shlex.join(zygotes(*TORCH))
    shutil.copy(SCRIPTS / "saves_itself.py", place / "train.py")
    options = DrillOptions(
        kills=kills,
        signals=("KILL",),
        seed=seed,
        resume_with=f"{python} train.py {shlex.quote(fault)} {'newest' if fault == 'stuck' else '{checkpoint}'}",
        checkpoints=("out/*.pt",),
    )
    before = os.getcwd()
    os.chdir(place)
    try:
        return drill.drill([*shlex.split(python), "train.py", fault], options, quiet)
    finally:
        os.chdir(before)


def is_loss_named(fault, zygotes, place, record_property):
    """The planted loss is named, and nothing that was not lost."""
    found = drilled(zygotes, fault, place)
    kinds = [each.kind for each in found.losses]
    record_property(TABLE, f"{fault} | {found.verdict} | {', '.join(kinds)}")
    assert found.verdict == (report.OUTPUT_DIFFERS if fault == "rows" else report.DIFFERENT), found
    assert kinds[0].startswith(LOSSES[fault]), found.losses
    assert found.exit_code == 1


def is_right_way_not_accused(name, zygotes, place, record_property):
    """A trainer that restores all is identical after each kill."""
    found = drilled(zygotes, name, place)
    record_property(TABLE, f"right: {name} | {found.verdict} | ")
    assert (found.verdict, found.losses, found.file_differences) == (report.IDENTICAL, [], []), found
    assert found.kills_proven == min(3, found.places) > 0
    assert found.files_compared > 3
    assert found.steps == {"accumulates": 12}.get(name, 24)
