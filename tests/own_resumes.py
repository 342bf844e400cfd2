"""Drills of a trainer that saves and resumes by itself: each kind of loss planted, and right ways of working."""

import os
import shlex
import shutil

from causes import SCRIPTS, TORCH, quiet
from holdfast import drill
from holdfast.drill import DrillOptions, report

# the argument of saves_itself.py -> the kinds of losses that the drill has to name; behind #: the public programs that
# lose it in the same way, docs/drill.md
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
    "drawn first": "generator",  # Hugging Face's Trainer: the generators are restored behind the first batch
    "half a folder": "torn checkpoint",  # Hugging Face's Trainer: trainer_state.json comes last
    "counter alone": "batches twice",  # Lightning: the counter goes on, a plain DataLoader begins anew
    "reseeded": "batches twice",  # timm, torchvision's references, pytorch/examples
    "one file": "torn checkpoint, nothing to resume from, generator",  # pytorch/examples, nanoGPT
    "no loader": "generator",  # nanoGPT, Stable-Baselines3
    "averaged weights": "weights",  # Ultralytics: the average, in half precision
}
WITHOUT_TORCH = {  # the argument of counts_itself.py
    "dice": "value, rows",  # XGBoost, Keras
    "cut": "torn checkpoint",  # Keras: the one file that it finds
    "anew": "started over",
}
RIGHT = ["right", "by epochs", "passes over", "accumulates", "noise", "last", "one ahead"]
RIGHT_WITHOUT_TORCH = "counts"  # CatBoost
FINDS = ("stuck", "dice", "cut", RIGHT_WITHOUT_TORCH)
COUNTS = {"script": "counts_itself.py", "checkpoints": "out/*.json"}
TABLE = "table: losses of a program's own resume that the drill has named"


def drilled(zygotes, fault, place, seed=1, kills=3, script="saves_itself.py", checkpoints="out/*.pt"):
    """The report of that trainer's drill."""
    python = shlex.join(zygotes(*TORCH))
    shutil.copy(SCRIPTS / script, place / "train.py")
    options = DrillOptions(
        kills=kills,
        signals=("KILL",),
        seed=seed,
        resume_with=f"{python} train.py {shlex.quote(fault)} {'newest' if fault in FINDS else '{checkpoint}'}",
        checkpoints=(checkpoints,),
    )
    before = os.getcwd()
    os.chdir(place)
    try:
        return drill.drill([*shlex.split(python), "train.py", fault], options, quiet)
    finally:
        os.chdir(before)


def tries(zygotes, fault, place, **given):
    """Reports of drills with other seeds: on a busy machine a kill may miss the save, and proves nothing then."""
    for seed in (1, 2, 3):
        again = place / str(seed)
        again.mkdir()
        yield drilled(zygotes, fault, again, seed, **given)


def is_loss_named(fault, zygotes, place, record_property):
    """The planted loss is named, and nothing that was not lost."""
    given = COUNTS if fault in WITHOUT_TORCH else {}
    found = next(each for each in tries(zygotes, fault, place, **given) if each.losses)
    kinds = ", ".join(each.kind for each in found.losses)
    record_property(TABLE, f"{fault} | {found.verdict} | {kinds}")
    assert found.verdict == (report.OUTPUT_DIFFERS if fault == "rows" else report.DIFFERENT), found
    assert kinds.startswith((LOSSES | WITHOUT_TORCH)[fault]), found.losses
    assert found.exit_code == 1


def is_right_way_not_accused(name, zygotes, place, record_property):
    """A trainer that restores all is identical after each kill."""
    counts = name == RIGHT_WITHOUT_TORCH
    reports = tries(zygotes, name, place, **(COUNTS if counts else {}))
    found = next(each for each in reports if each.losses or each.verdict != report.NOT_PROVEN)
    record_property(TABLE, f"right: {name} | {found.verdict} | ")
    assert (found.verdict, found.losses, found.file_differences) == (report.IDENTICAL, [], []), found
    assert found.kills_proven == min(3, found.places) > 0
    assert found.files_compared >= (2 if counts else 4)
    assert found.steps == {"accumulates": 12, RIGHT_WITHOUT_TORCH: 0}.get(name, 24)
