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
EACH = {"a run": 3, "a store": 12, "two ranks": 12}  # disks for each change


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


# What syncs in the story of a store, in the words of the code; without each of them something is lost.
NEEDED = (
    "_create_attempt_dir: disk.sync_dir(attempt.room.parent)",
    "_create_attempt_dir: disk.sync_dir(draft)",
    "_create_attempt_dir: disk.write(draft / attempt.journal.name",
    "_read_or_create_run_id: disk.sync_dir(root)",
    "_read_or_create_run_id: disk.write(",
    "claim: disk.make_dirs(part)",
    "discard: disk.sync_dir(path.parent)",
    "commit_partial: disk.write(partial / MANIFEST",
    "make_durable: disk.sync_dir(Path(place))",
    "make_durable: disk.sync_file(Path(place) / name)",
    "publish: disk.sync_dir(partial)",
    "publish: disk.sync_dir(target.parent)",
    "write: os.fsync(descriptor)",
)
# Syncs without which the promise holds in this story, and why.
EQUIVALENT = {
    "publish: disk.sync_dir(attempt.room)": "what it syncs lies in the attempt's own room",
    "append: disk.append(path, encode_events(events), sync=sync)": "no checkpoint needs it; test_crash asks for it",
    'claim: disk.sync_dir(root / "checkpoints")': "nobody died in a commit; test_crash tells such a story",
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("story", PARTS)
def test_power_lost_in_a_real_save_loses_nothing_that_was_saved(story, seed, tally):
    """Any subset of what was not synced is missing: a whole checkpoint is there, no older than the last save."""
    tried = loses_power(story, EACH[story], seed)
    tally("Power is lost in a real save", tried=tried)
    assert tried > 150


@pytest.fixture(scope="module", name="sites")
def all_sites():
    with scratched("sites") as place:
        return story_of(place, "a store").sites


def test_each_sync_of_a_save_is_known(sites):
    """Each statement that syncs is asked below, or there is a reason why not."""
    known = (*NEEDED, *EQUIVALENT)
    assert sorted(known) == sorted(each for site in sites for each in known if site.startswith(each))
    assert len(sites) == len(known)


@pytest.mark.parametrize("start", NEEDED)
def test_each_sync_that_is_missing_loses_something(start, sites, tally):
    """The code that saves is a mutant: one of the statements that sync does nothing. Some disk breaks the promise."""
    site = next(each for each in sites if each.startswith(start))
    with pytest.raises((AssertionError, HoldfastError)) as noticed:
        loses_power("a store", EACH["a store"], seed=1, without=site)
    assert "power lost before" in noticed.value.__notes__[0]
    tally("A sync is removed from the code that saves", tried=1)
