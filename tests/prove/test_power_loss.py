"""Power is lost in real saves, with any subset of what was not synced: tests/power.py says how.

Each disk that such a loss may leave is made real, and the reader is asked: the newest checkpoint whose save had
returned is there, or a newer one, whole and bit for bit. Then a run starts from it and saves on.
"""

import random
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from collective import frozen, read, same
from faults import scratched
from holdfast import Run, journal
from holdfast.errors import HoldfastError
from holdfast.store.attempt import read_run
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.store import Store
from needed import needs
from power import Recorded, losses, recorded
from power_script import PARTS, Model, state_at

pytestmark = needs("strace")
EACH = 9  # disks for each change


def is_a_model(checkpoint: Checkpoint) -> None:
    if "deep/rows.bin" in checkpoint.manifest.files:
        assert (checkpoint.path / "deep" / "rows.bin").read_bytes() == state_at(checkpoint.step)["rows"].tobytes()
        return
    found = checkpoint.load(placeholders=True)["model"]
    for key, value in state_at(checkpoint.step).items():
        assert value.tobytes() == found[key].tobytes(), f"{checkpoint}: {key}"


def is_of_two_ranks(checkpoint: Checkpoint) -> None:
    for rank in range(2):
        assert same(frozen(rank, 600, checkpoint.step), read(checkpoint, rank))


def trains_on(root: Path, newest: int) -> None:
    model = Model()
    with Run(root, {"model": model}, every=None, take_over=True) as run:
        assert run.step == newest
        for key, value in state_at(newest).items():
            assert value.tobytes() == model.arrays[key].tobytes()
        for step in run.steps(newest + 1):
            model.learn(step + 1)
    assert Store(root).latest().step == newest + 1


def saves_on(root: Path, newest: int) -> None:
    store = Store(root, take_over=True)
    store.save({"model": state_at(newest + 1)}, step=newest + 1)
    assert store.latest().step == newest + 1


LAWS: dict[str, tuple[Callable[[Checkpoint], None], Callable[[Path, int], None]]] = {
    "a run": (is_a_model, trains_on),
    "a store": (is_a_model, saves_on),
    "two ranks": (is_of_two_ranks, saves_on),
}


def promised(root: Path, said: int, story: str) -> None:
    """The newest checkpoint whose save had returned is there, or a newer one; all are whole; and it goes on."""
    holds, goes_on = LAWS[story]
    assert root.exists() or said == 0
    found = Store(root).checkpoints() if root.exists() else []
    newest = max([0, *(checkpoint.step for checkpoint in found)])
    assert newest >= said, f"step {said} was saved, and {newest} is the newest"
    for checkpoint in found:
        assert [] == list(checkpoint.problems())
        assert checkpoint.manifest.run == read_run(root)
        holds(checkpoint)
    owners = {log.attempt: log.owner for log in journal.logs(root)}
    for room in root.glob("attempts/[0-9]*"):
        assert owners.get(int(room.name)), f"nobody could prove that attempt {room.name} is gone"
    with redirect_stderr(None):
        goes_on(root, newest)
    newer = Store(root).latest().manifest.attempt
    assert all(checkpoint.head.attempt < newer for checkpoint in found), "an attempt has the number of an older one"


def story_of(place: Path, story: str, without: str = "") -> Recorded:
    (place / "real").mkdir()
    parts = [recorded(place / "real", part.__name__, without) for part in PARTS[story]]
    return Recorded([made for part in parts for made in part.made], set().union(*(part.sites for part in parts)))


def loses_power(story: str, each: int, seed: int, stride: int = 1, without: str = "") -> int:
    """Ask the promise of every `stride`-th disk that a loss of power in that story may leave; how many there were."""
    tried = 0
    with scratched("power") as place:
        recording = story_of(place, story, without)
        assert without in {"", *recording.sites}
        found = losses(recording.made, place / "real", place / "again", random.Random(seed), each)
        for number, loss in enumerate(found):
            if number % stride:
                continue
            list(loss.picture.build(place / "left"))
            try:
                promised(place / "left" / "run", loss.said, story)
            except BaseException as error:
                error.add_note(f"{story}, seed {seed}: power lost before {loss.before}, disk {number}")
                raise
            tried += 1
            shutil.rmtree(place / "left")
    return tried


# Syncs without which the promise holds in this story, and why.
EQUIVALENT = {
    "publish: disk.sync_dir(attempt.room)": "what it syncs lies in the attempt's own room",
    "append: disk.append(path, lines(events), sync=sync)": "no checkpoint depends on a line; test_crash asks for them",
    'claim: disk.sync_dir(root / "checkpoints")': "nobody died in a commit; test_crash tells such a story",
}


@pytest.mark.parametrize("story", PARTS)
def test_power_lost_in_a_real_save_loses_nothing_that_was_saved(story, tally):
    """Any subset of what was not synced is missing: a whole checkpoint is there, no older than the last save."""
    tried = loses_power(story, EACH, seed=16)
    tally("Power is lost in a real save", tried=tried)
    assert tried > 500


def test_each_sync_that_is_missing_loses_something(tally):
    """The code that saves is a mutant: one of the statements that sync does nothing. Some disk breaks the promise."""
    with scratched("sites") as place:
        sites = sorted(story_of(place, "a store").sites)
    wanted = [site for site in sites if not site.startswith(tuple(EQUIVALENT))]
    assert len(sites) == len(wanted) + len(EQUIVALENT) > 12
    noticed = [site for site in wanted if _notices(site)]
    tally("A sync is removed from the code that saves", tried=len(wanted), survived=len(noticed))
    assert noticed == wanted


def _notices(site: str) -> bool:
    try:
        loses_power("a store", EACH, seed=1, without=site)
    except (AssertionError, HoldfastError) as error:
        return bool(error.__notes__)
    return False
