"""Crash enumeration: every change that a save, a prune, a quarantine or a claim makes to files, and every end after
it.

Each story is played once under `Memory`; between every two changes (and in the middle of every write) the pictures of
what may be left are taken. Each different picture is made real and opened by a new store, which must find the old or
the new checkpoint, whole, and never one older than the last save that had returned; then it saves on.

There are three engines: small files are written through the page cache; every file is written as a big one is, in
many requests past the cache; or what did not change is linked from one checkpoint to the next. Here each story has
one engine, and of its ends one in `STRIDE` is opened; `make prove` opens all of them with each engine. In the story
of a run the loop goes on, one step for each change of a save in flight.
"""

import itertools
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

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
from holdfast.store.shards import SaveAbandoned
from holdfast.store.store import Store
from stores import listing, put, state_of, steps, whole

WAIT_S = 60
KEEP = Last(2) | Best("acc", max)
ENGINES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "through the cache": nullcontext,
    "requests": requests,
    "links": links,
}
STRIDE = 4


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
            _acquired(self._go)
        return perform()

    def wait(self) -> None:
        """Until it is about to make a change, or has ended."""
        _acquired(self._rests)

    def go(self) -> None:
        self._go.release()
        self.wait()


def _acquired(turn: threading.Semaphore) -> None:
    """No answer is another error than a broken promise."""
    if not turn.acquire(timeout=WAIT_S):
        raise TimeoutError("the loop and the writer of a run wait for each other")


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
    fence = claiming.fence_attempt

    def late(attempt: attempts.Attempt, log: journal.Log) -> None:
        os.rename(partial, path)
        fence(attempt, log)

    claiming.fence_attempt = late
    try:
        story.claim()
    finally:
        claiming.fence_attempt = fence
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
        still_there(base, end.done)
        return
    memory = end.memory.fork(end.picture, base)
    with door(memory):
        still_there(base, end.done)
    last = Done(step=end.done.flying + 1, flying=end.done.flying + 1)
    pictures = {picture.mark(): picture for _, picture in memory.states()}
    for number, picture in enumerate(pictures.values()):
        further = base.with_name(f"{base.name}-{number}")
        list(picture.build(further))
        still_there(further, last, saving=False)
    memory.close()


def still_there(base: Path, done: Done, *, saving: bool = True) -> None:
    """The law asked of the run in `base`; it may only be missing as long as no save had returned."""
    assert (base / "run").exists() or done.step == 0
    opens_whole(base / "run", done, saving=saving)


def enumerate_ends(tell: Tell, stride: int = 1) -> Counter[str]:
    """Open every `stride`-th of the pictures that the story's ends leave; how many there were, by how they came."""
    with scratched("crash") as place:
        (place / "live").mkdir()
        counts: Counter[str] = Counter()
        calls, found = ends(place / "live", tell, counts)
        for number in range(len(found) - 1, -1, -stride):
            end, base = found[number], place / f"end-{number}"
            try:
                after(end, base)
            except BaseException as error:
                before = calls[end.at] if end.at < len(calls) else "the end"
                error.add_note(
                    f"{tell.__name__}: {end.how} before change {end.at} of {len(calls)}: {before}; {end.done}"
                )
                raise
            counts["opened"] += 1
            for path in place.glob(f"{base.name}*"):
                shutil.rmtree(path)
    return counts + Counter({"changes": len(calls), "different pictures": len(found)})


def crashes(tell: Tell, engine: str, stride: int = 1) -> int:
    """How many of the pictures were opened."""
    with ENGINES[engine]():
        counts = enumerate_ends(tell, stride)
    print(tell.__name__, engine, dict(counts))
    assert counts["killed"] == counts["the cord"] == counts["changes"] + 1
    assert counts["name lost"] or tell is close
    assert counts["opened"] == -(-counts["different pictures"] // stride) > 0
    return counts["opened"]


def with_an_engine_each(stories: Sequence[Tell]) -> pytest.MarkDecorator:
    """Each story with one engine; no engine is left out."""
    pairs = list(zip(stories, itertools.cycle(ENGINES), strict=False))
    return pytest.mark.parametrize(("tell", "engine"), pairs, ids=lambda each: getattr(each, "__name__", each))


@with_an_engine_each(STORIES)
def test_a_crash_anywhere_leaves_the_old_or_the_new_whole(tell, engine):
    """Whatever was killed, cut short or forgotten:
    a new store finds a whole checkpoint, no older than the last save."""
    crashes(tell, engine, STRIDE)


def test_a_file_system_without_rename_no_replace_is_as_safe(monkeypatch):
    """NFS and some FUSE systems know no such flag: the plain rename keeps the same promise to one owner."""
    monkeypatch.setattr(disk, "_renameat2", None)
    assert enumerate_ends(save_and_prune, 2 * STRIDE)["killed"] > 40


def test_a_save_that_gives_way_at_any_request_leaves_the_store_as_it_was():
    """Each request to the disk may be the one before which a newer save is wanted;
    the last one through is committed."""
    with scratched("way") as place, requests():
        store = Store(place / "run", keep=Last(2))
        put(store, 1)
        put(store, 2)
        seen, arena = listing(store.root), Arena()
        for nth in itertools.count():
            left = iter(range(nth))

            def before_each(left: Iterator[int] = left) -> None:
                if next(left, None) is None:
                    raise SaveAbandoned

            staged = store.stage(state_of(3), arena)
            try:
                store.commit(staged, step=3, before_each=before_each)
                break
            except SaveAbandoned:
                assert seen == listing(store.root)
        assert nth > 4
        assert whole(store.load(), 3)
        # Asked once more after the commit: whoever waits is not kept waiting by a prune.
        assert [1, 2, 3] == steps(store)
        put(store, 4)
        assert [3, 4] == steps(store)


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


def refusals(tell: Tell, engine: str, code: int, stride: int = 1) -> int:
    """How many changes were refused."""
    with ENGINES[engine]():
        nth = next(nth for nth in itertools.count(0, stride) if not refused(tell, nth, code))
    assert nth > 1
    return nth // stride


@with_an_engine_each(STORIES[::-1])
def test_a_refusal_anywhere_leaves_the_old_or_the_new_whole(tell, engine):
    """A full or failing disk at any change: this store and a new one find a whole checkpoint, and save on."""
    refusals(tell, engine, (FULL, BROKEN)[STORIES.index(tell) % 2], STRIDE)


# -- tests of these tests -------------------------------------------------------------------------------------------


def finds_less(tell: Tell) -> None:
    """Some end of the story, once opened, holds less than was promised: the story itself was told to its end."""
    with pytest.raises((AssertionError, StoreError)) as noticed:
        enumerate_ends(tell, STRIDE)
    assert f"{tell.__name__}: " in noticed.value.__notes__[0]


@pytest.mark.parametrize("tell", [save_and_prune, background], ids=lambda tell: tell.__name__)
def test_the_model_notices_a_big_file_that_is_not_synced(tell, monkeypatch):
    """O_DIRECT promises nothing about a power loss: the sync at the file's end is needed."""
    monkeypatch.setattr(bulk, "os", SimpleNamespace(**{**vars(os), "fsync": lambda descriptor: None}))
    with requests():
        finds_less(tell)


@pytest.mark.parametrize("lost", ["sync_dir", "sync_file", "write"])
def test_the_model_notices_a_sync_that_is_missing(lost, monkeypatch):
    """Without one kind of sync, some end leaves less than was promised."""

    def hasty(path: Path, chunks: Any = None) -> None:
        if chunks is not None:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, b"".join(chunks))
            os.close(descriptor)

    monkeypatch.setattr(disk, lost, hasty)
    finds_less(directory if lost == "sync_file" else save_and_prune)
