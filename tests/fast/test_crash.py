"""Crash enumeration: every change that a save, a prune, a quarantine or a claim makes to files, and every end after it.

Each story is played once under `Memory`; between every two changes (and in the middle of every write) the pictures of
what may be left are taken. Each different picture is made real and opened by a new store, which must find the old or
the new checkpoint, whole, and never one older than the last save that had returned; then it saves on.

Each story is told three times: as its small files are written, through the page cache; with every file written as a big
one is, in many requests past it; and with what did not change linked from one checkpoint to the next. In the story of a
run the loop goes on, one step for each change of a save in flight.
"""

import itertools
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from faults import (
    BROKEN,
    FULL,
    Call,
    Crash,
    Memory,
    Picture,
    counting,
    door,
    failing,
    half_of,
    links,
    requests,
    scratched,
)
from holdfast import bulk, disk, journal
from holdfast.errors import NotFound, StoreError, UsageError
from holdfast.rules import Best, Last
from holdfast.run.run import Run
from holdfast.state.snapshot import Arena
from holdfast.store import attempt as attempts
from holdfast.store import claiming
from holdfast.store.store import Abandoned, Facts, Store

WAIT_S = 5
KEEP = Last(2) | Best("acc", max)
ENGINES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "through the cache": nullcontext,
    "requests": requests,
    "links": links,
}
through = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())


def state_of(step: int) -> dict[str, Any]:
    """With leaves of several requests, of parts of one, and one that never changes."""
    model = {"w": np.full((3, 900), step, "float32"), "still": np.arange(1100, dtype="float32")}
    return {"model": model, "text": bytes([step % 251]) * 1100, "step": step}


def put(store: Store, step: int) -> None:
    store.save(state_of(step), step=step, facts=Facts(document={"by": "a test"}, metrics={"acc": -abs(step - 2)}))


def whole(state: Any, step: int) -> bool:
    wanted = state_of(step)
    same = all(state["model"][key].tobytes() == value.tobytes() for key, value in wanted["model"].items())
    return same and ("holdfast" in state or (state["text"], state["step"]) == (wanted["text"], wanted["step"]))


class Done(NamedTuple):
    """What had returned, and must last."""

    step: int = 0  # of the newest save
    attempt: int = 0
    lines: tuple[int, ...] = ()  # of metrics, synced
    kept: tuple[str, ...] = ()  # names set aside or about to be, which nothing may delete
    flying: int = 0  # the newest step that may be there
    aside: tuple[str, ...] = ()  # names that lie in quarantine for good
    pinned: tuple[str, ...] = ()
    unpinned: tuple[str, ...] = ()
    closed: int = 0  # the attempt that said good-bye


class Story:
    """A store, what it did, and what it may rely on."""

    def __init__(self, root: Path) -> None:
        self.root, self.done = root, Done()
        self.store = Store(root)
        self.hold: Callable[..., Any] = lambda call, perform: perform()  # before a change

    def claim(self, **named) -> None:
        self.store = Store(self.root, take_over=True, **named)
        self.store.claim()
        self.done = self.done._replace(attempt=self.store.attempt.number)

    def save(self, step: int) -> None:
        self.done = self.done._replace(flying=max(step, self.done.flying))
        put(self.store, step)
        self.done = self.done._replace(step=step)

    def line(self, step: int) -> None:
        self.store.attempt.record("metrics", step=step, phase="step", values={"loss": step})
        self.store.attempt.flush(sync=True)
        self.done = self.done._replace(lines=(*self.done.lines, step))


class Model:
    """A run's, that changes its arrays in place."""

    def __init__(self) -> None:
        self.arrays = state_of(0)["model"]

    def learn(self, step: int) -> None:
        self.arrays["w"][:] = step

    def state_dict(self) -> dict[str, Any]:
        return self.arrays

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.arrays = state


class Turns:
    """Holds the writer of a run before each of its changes, until it is told to make that one."""

    def __init__(self, run: Run) -> None:
        self._writer, work = run._session.saves.writer, run._session.saves.writer._run
        self._go, self._rests = threading.Semaphore(0), threading.Semaphore(0)

        def ended(*given: Any) -> None:
            work(*given)
            self._rests.release()

        self._writer._run = ended

    def __call__(self, call: Call, perform: Callable[[], Any]) -> Any:
        if threading.current_thread().name == "holdfast":
            self._rests.release()
            assert self._go.acquire(timeout=WAIT_S)
        return perform()

    def wait(self) -> None:
        """Until it is about to make a change, or has ended."""
        assert self._rests.acquire(timeout=WAIT_S)

    def go(self) -> None:
        self._go.release()
        self.wait()


Tell = Callable[[Story], Iterator[None]]  # what comes before the yield is settled, what comes after is enumerated


def first_save(story: Story) -> Iterator[None]:
    yield
    story.claim()
    story.save(1)


def save_and_prune(story: Story) -> Iterator[None]:
    story.claim(keep=KEEP)
    for step in (1, 2, 3):
        story.save(step)
    story.line(3)
    yield
    story.line(4)
    story.save(4)  # 1 went with 3's save; nothing goes now: 2 is the best
    story.save(5)  # 3 goes
    story.line(5)


def prune(story: Story) -> Iterator[None]:
    story.claim()
    for step in (1, 2, 3, 4):
        story.save(step)
    story.store.pin(2)
    yield
    story.store.prune(Last(1))


def quarantine_and_fall_back(story: Story) -> Iterator[None]:
    story.claim()
    for step in (1, 2, 3):
        story.save(step)
    shard = story.store[3].path / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"X")
    assert list(story.store[3].problems())
    story.done = story.done._replace(step=2, kept=("step-000000003",))
    yield
    story.store.quarantine(story.store[3], "digest")
    story.done = story.done._replace(kept=(), aside=("step-000000003",))
    assert whole(story.store.load(), 2)
    story.save(3)


def fence_leftovers(story: Story) -> Iterator[None]:
    """The successor of an attempt that died in several places at once."""
    story.claim()
    for step in (1, 2, 3):
        story.save(step)
    story.line(3)
    room = story.store.attempt.room
    os.rename(story.store[3].path, room / "quarantine-step-000000003-digest")
    os.rename(story.store[1].path, room / "deleting-step-000000001")
    (room / "step-000000004").mkdir()
    (room / "step-000000004" / "model.safetensors").write_bytes(b"half")
    (room / "link-latest").symlink_to("step-000000003")
    story.done = story.done._replace(step=2, flying=2, kept=("step-000000003",))
    yield
    story.claim()
    story.save(3)


def directory(story: Story) -> Iterator[None]:
    story.claim()
    story.save(1)
    yield
    story.done = story.done._replace(flying=2)
    with story.store.directory(step=2) as path:
        (path / "deep").mkdir()
        (path / "deep" / "a.bin").write_bytes(b"a" * 3000)
        (path / "b.txt").write_text("b")
    story.done = story.done._replace(step=2)


def pin(story: Story) -> Iterator[None]:
    story.claim()
    for step in (1, 2, 3):
        story.save(step)
    story.store.pin(1)
    yield
    story.store.pin(2)  # it may share a file with 3
    story.done = story.done._replace(pinned=("step-000000002",))
    story.store.unpin(1)
    story.done = story.done._replace(unpinned=("step-000000001",))


def close(story: Story) -> Iterator[None]:
    story.claim()
    story.save(1)
    yield
    story.store.close()
    story.done = story.done._replace(closed=story.done.attempt)


def adopt(story: Story) -> Iterator[None]:
    """A process died between a commit and its sync; its successor prunes what came before."""
    story.claim()
    for step in (1, 2):
        story.save(step)
    path, partial = story.store[2].path, story.store.attempt.room / "step-000000002"
    os.rename(path, partial)
    story.done = story.done._replace(step=1, flying=2)
    yield
    os.rename(partial, path)
    story.claim()
    story.store.prune(Last(1))


def adopt_late(story: Story) -> Iterator[None]:
    """As `adopt`, but the dead process committed while its successor was about to fence it."""
    story.claim()
    for step in (1, 2):
        story.save(step)
    path, partial = story.store[2].path, story.store.attempt.room / "step-000000002"
    os.rename(path, partial)
    story.done = story.done._replace(step=1, flying=2)
    yield
    fence = claiming.fence

    def late(attempt: attempts.Attempt, log: journal.Log) -> None:
        os.rename(partial, path)
        fence(attempt, log)

    claiming.fence = late
    try:
        story.claim()
    finally:
        claiming.fence = fence
    story.store.prune(Last(1))


def background(story: Story) -> Iterator[None]:
    """A run saves twice in the background, pruning, and is left; the loop makes a step for each change of a save."""
    model, saves = Model(), 0
    with suppress(Crash), Run(story.root, {"model": model}, every=None, keep=Last(1), take_over=True) as run:
        session = run._session
        story.done = story.done._replace(attempt=session.attempt.number)
        story.hold = turns = Turns(run)
        yield
        for step in run.steps(10**6):
            model.learn(step + 1)
            run.log(loss=step)
            if session.saves.flight is not None:
                turns.wait() if session.saves.flight.name.step == step else turns.go()
                continue
            if session.saves.saved is not None:
                story.done = story.done._replace(
                    step=session.saves.saved.step, lines=tuple(range(1, session.saves.saved.step + 1))
                )
            if saves == 2:
                raise Crash
            run.save()
            saves += 1
            story.done = story.done._replace(flying=step + 1)


STORIES = (
    first_save,
    close,
    directory,
    pin,
    quarantine_and_fall_back,
    fence_leftovers,
    adopt,
    adopt_late,
    prune,
    save_and_prune,
    background,
)


# -- one pass, all ends ---------------------------------------------------------------------------------------------


class End(NamedTuple):
    how: str
    at: int  # the change before which it came
    picture: Picture
    done: Done
    memory: Memory | None  # with "killed": the disk's, for what comes after


def ends(base: Path, tell: Tell, cases: Counter[str]) -> tuple[list[Call], list[End]]:
    """Play the story over a remembering disk; every different picture that an end could leave, and how many ends."""
    story = Story(base / "run")
    play = tell(story)
    next(play)
    memory = Memory(base)
    calls: list[Call] = []
    found: list[End] = []
    seen: set[Any] = set()
    alone = threading.Lock()

    def look(how: str, pictures: Iterator[tuple[str, Picture]]) -> None:
        for kind, picture in pictures:
            cases[how or kind] += 1
            mark = (picture.mark(), story.done)
            if mark not in seen or kind == "killed":
                found.append(
                    End(how or kind, len(calls), picture, story.done, memory.freeze() if kind == "killed" else None)
                )
            seen.add(mark)

    def change(call: Call, perform: Callable[[], Any]) -> Any:
        look("", memory.states())
        calls.append(call)
        if call.name != "write":
            return memory(call, perform)
        half = half_of(call)
        look("killed in a write", iter([("half", memory.live())]))
        return half + memory(call, lambda: half_of(call, second=True))

    def act(call: Call, perform: Callable[[], Any]) -> Any:
        def alone_in_turn() -> Any:
            with alone:
                return change(call, perform)

        return story.hold(call, alone_in_turn)

    with door(act):
        next(play, None)
    look("", memory.states())
    memory.close()
    return calls, found


def opens_whole(root: Path, done: Done, *, saving: bool = True) -> None:
    """The law, asked of what an end has left."""
    store = Store(root, take_over=True)
    newest = step_of(store)
    assert done.step <= newest <= done.flying
    for checkpoint in store.checkpoints():
        assert checkpoint.name in done.kept or not list(checkpoint.problems())
        assert checkpoint.manifest.run == attempts.read_run(root)
        if checkpoint.name not in done.kept and "model" in checkpoint.parts():
            assert whole(checkpoint.load(), checkpoint.step)
    assert all(int(room.name) >= done.attempt for room in root.glob("attempts/[0-9]*"))  # what was fenced stays so
    assert done.closed in {0, *(log.attempt for log in journal.logs(root) if log.closed)}
    owners = {log.attempt: log.owner for log in journal.logs(root)}
    assert all(owners[int(room.name)] for room in root.glob("attempts/[0-9]*"))  # else nobody could be proven gone
    store.claim()
    assert store.attempt.number > done.attempt
    assert set(done.lines) <= {event["step"] for event in journal.metrics(root)}
    assert set(done.pinned) <= store.pins()
    for name in done.pinned:
        assert not files_of(store, {name}) & files_of(store, {each.name for each in store.checkpoints()} - {name})
    assert not set(done.unpinned) & store.pins()
    for name in done.aside:
        assert list((root / "quarantine").glob(f"{name}*"))
    for name in done.kept:
        assert [path for path in root.glob("*/*") if path.name.startswith(name)]
    if not saving:
        return
    if newest == done.flying > 0 and "model" in store.latest().parts():
        with pytest.raises(UsageError):
            put(store, newest)
    for name in done.kept:
        if (root / "checkpoints" / name).exists():
            store.quarantine(store[name], "digest")
    for step in range(step_of(store) + 1, done.flying + 2):
        put(store, step)
        assert step_of(store) == step
    store.prune(Last(1))
    assert {each.name for each in store.checkpoints()} == {store.latest().name, *store.pins()}
    is_tidy(store)


def files_of(store: Store, names: set[str]) -> set[int]:
    """Their identities; two checkpoints may share one."""
    return {path.stat().st_ino for name in names for path in store[name].path.iterdir()}


def step_of(store: Store) -> int:
    """The newest valid checkpoint's step; 0 when nothing was ever committed."""
    try:
        state = store.load()
    except NotFound:
        return 0
    return state["step"] if state and "step" in state else store.latest().step


def is_tidy(store: Store) -> None:
    """What the dead left is gone: one room with a journal in it, and whole checkpoints with links that lead to them."""
    room = store.attempt.room
    assert [path.name for path in room.iterdir()] == [store.attempt.journal.name]
    rooms = [path for path in room.parent.iterdir() if not path.name.startswith(".claim-")]
    assert rooms == [room]
    for path in (store.root / "checkpoints").iterdir():
        assert path.exists()
        assert path.is_symlink() or attempts.is_checkpoint(path)


def after(end: End, base: Path) -> None:
    """Open what is left; when a process was killed, also cut the cord after its successor has saved."""
    if end.memory is None:
        list(end.picture.build(base))
        if (base / "run").exists():
            opens_whole(base / "run", end.done)
        return
    memory = end.memory.fork(end.picture, base)
    if (base / "run").exists() or end.done.step == 0:
        with door(memory):
            opens_whole(base / "run", end.done)
        last = Done(step=end.done.flying + 1, flying=end.done.flying + 1)
        pictures = {picture.mark(): picture for _, picture in memory.states()}
        for number, picture in enumerate(pictures.values()):
            list(picture.build(base.with_name(f"{base.name}-{number}")))
            opens_whole(base.with_name(f"{base.name}-{number}") / "run", last, saving=False)
    memory.close()


def enumerate_ends(tell: Tell) -> Counter[str]:
    with scratched("crash") as place:
        (place / "live").mkdir()
        counts: Counter[str] = Counter()
        calls, found = ends(place / "live", tell, counts)
        for number, end in enumerate(found):
            base = place / f"end-{number}"
            try:
                after(end, base)
            except BaseException as error:
                before = calls[end.at] if end.at < len(calls) else "the end"
                error.add_note(
                    f"{tell.__name__}: {end.how} before change {end.at} of {len(calls)}: {before}; {end.done}"
                )
                raise
            for path in place.glob(f"{base.name}*"):
                shutil.rmtree(path)
    return counts + Counter({"changes": len(calls), "different pictures": len(found)})


@pytest.mark.slow
@through
@pytest.mark.parametrize("tell", STORIES, ids=lambda tell: tell.__name__)
def test_a_crash_anywhere_leaves_the_old_or_the_new_whole(tell, engine, record_property):
    """Whatever was killed, cut short or forgotten: a new store finds a whole checkpoint, no older than the last save."""
    with engine():
        counts = enumerate_ends(tell)
    record_property("ends", dict(counts))
    print(tell.__name__, dict(counts))
    assert counts["killed"] == counts["the cord"] == counts["changes"] + 1
    assert counts["name lost"] or tell is close


@pytest.mark.slow
def test_a_file_system_without_rename_no_replace_is_as_safe(monkeypatch):
    """NFS and some FUSE systems know no such flag: the plain rename keeps the same promise to one owner."""
    monkeypatch.setattr(disk, "_renameat2", None)
    assert enumerate_ends(save_and_prune)["killed"] > 40


def listing(root: Path) -> dict[str, bytes]:
    """What lies in the run, the journal apart, which may grow."""
    paths = [path for path in root.rglob("*") if path.suffix != ".jsonl"]
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"" for path in paths}


def test_a_save_that_gives_way_at_any_request_leaves_the_store_as_it_was():
    """Each request to the disk may be the one before which a newer save is wanted; the last one through is committed."""
    with scratched("way") as place, requests():
        store = Store(place / "run", keep=Last(2))
        put(store, 1)
        put(store, 2)
        seen, arena = listing(store.root), Arena()
        for nth in itertools.count():
            left = iter(range(nth))

            def before_each(left: Iterator[int] = left) -> None:
                if next(left, None) is None:
                    raise Abandoned

            staged = store.stage(state_of(3), arena)
            try:
                store.commit(staged, step=3, before_each=before_each)
                break
            except Abandoned:
                assert seen == listing(store.root)
        assert nth > 4
        assert whole(store.load(), 3)
        steps = [1, 2, 3]  # asked once more after the commit: whoever waits is not kept waiting by a prune
        assert steps == [checkpoint.step for checkpoint in store.checkpoints()]
        put(store, 4)
        assert [3, 4] == [checkpoint.step for checkpoint in store.checkpoints()]


# -- a disk that refuses --------------------------------------------------------------------------------------------


def refused(tell: Tell, nth: int, code: int) -> bool:
    """Play the story with its nth change refused; whether it came that far."""
    with scratched("refused") as place:
        story = Story(place / "run")
        play = tell(story)
        next(play)
        calls: list[Call] = []
        fail, count = failing(nth, code), counting(calls)
        try:
            with door(lambda call, perform: story.hold(call, lambda: count(call, lambda: fail(call, perform)))):
                next(play, None)
        except OSError:
            assert tell in {directory, adopt, adopt_late}  # these write themselves
        except (StoreError, UsageError):
            if story.store.attempt is not None:
                still_works(story)
        shutil.copytree(place / "run", place / "copy", symlinks=True) if (place / "run").exists() else None
        for root in (place / "run", place / "copy"):
            opens_whole(root, story.done)
        return len(calls) > nth


def still_works(story: Story) -> None:
    """The same store goes on after a failure: the step is there, or can be saved again."""
    store = story.store
    for name in story.done.kept:
        if (store.root / "checkpoints" / name).exists():
            store.quarantine(store[name], "digest")
    newest = step_of(store)
    assert story.done.step <= newest <= story.done.flying
    store.keep = None
    for step in range(newest + 1, story.done.flying + 2):
        story.save(step)
        assert step_of(store) == step
    assert not list(store.root.glob("pins/.*"))
    left = {path.name for path in store.attempt.room.iterdir()} - {store.attempt.journal.name}
    assert {name.partition("-")[0] for name in left} <= {"deleting", "quarantine"}  # its successor sees to them


@pytest.mark.slow
@through
@pytest.mark.parametrize("code", [FULL, BROKEN], ids=["ENOSPC", "EIO"])
@pytest.mark.parametrize("tell", STORIES, ids=lambda tell: tell.__name__)
def test_a_refusal_anywhere_leaves_the_old_or_the_new_whole(tell, code, engine):
    """A full or failing disk at any change: this store and a new one find a whole checkpoint, and save on."""
    with engine():
        for nth in itertools.count():
            if not refused(tell, nth, code):
                break
    assert nth > 1


# -- tests of these tests -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tell", [save_and_prune, background], ids=lambda tell: tell.__name__)
def test_the_model_notices_a_big_file_that_is_not_synced(tell, monkeypatch):
    """O_DIRECT promises nothing about a power loss: the sync at the file's end is needed."""
    monkeypatch.setattr(bulk, "os", SimpleNamespace(**{**vars(os), "fsync": lambda descriptor: None}))
    with requests(), pytest.raises((AssertionError, StoreError)):
        enumerate_ends(tell)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["sync_dir", "sync_file", "write"])
def test_the_model_notices_a_sync_that_is_missing(lost, monkeypatch):
    """Without one kind of sync, some end leaves less than was promised."""

    def hasty(path: Path, chunks: Any = None) -> None:
        if chunks is not None:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, b"".join(chunks))
            os.close(descriptor)

    monkeypatch.setattr(disk, lost, hasty)
    with pytest.raises((AssertionError, StoreError)):
        enumerate_ends(directory if lost == "sync_file" else save_and_prune)
