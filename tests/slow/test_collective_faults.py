"""Several ranks save together, and a disk fails, a successor comes or the power goes: the old or the new, whole for
each.

Here every `STRIDE`-th change of a rank has its fault; `make prove` gives one to each.
"""

import errno
import itertools
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, NamedTuple

import pytest

from collective import among, failed, frozen, kinds, put, read, same, small, state
from faults import Memory, door, failing, scratched
from holdfast.errors import DiskError, NoSpace, StoreError, Superseded
from holdfast.rules import Last
from holdfast.store import claiming
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.store import Store
from stores import steps

WORLD, STRIDE = 3, 5
WAYS = list(itertools.product([(errno.ENOSPC, NoSpace), (errno.EIO, DiskError)], [1, 2]))  # errors, checkpoints kept


class Kind(NamedTuple):
    """What a save writes."""

    give: Callable[[int, int], Any]  # the state of a rank at a step
    before: int  # so many saves, after which it is as it will be
    link_bytes: int  # of what is worth a link


KINDS = {
    "anew": Kind(lambda rank, step: state(rank, 50, step=step), 1, 1 << 20),
    "shared": Kind(lambda rank, step: frozen(rank, 600, step), 3, 4096),  # everything but a little is linked
}


def sized(law):
    """Ask it with the sizes that its kind of save needs."""

    @wraps(law)
    def asked(kind, *given):
        with small(KINDS[kind].link_bytes):
            return law(kind, *given)

    return asked


def begun(store, kind):
    for step in range(1, KINDS[kind].before + 1):
        further(store, kind, step)


def further(store, kind, step):
    return put(store, KINDS[kind].give(store.ranks.rank, step), step)


def all_whole(root, kind, *allowed):
    """What is there is whole for every rank."""
    store = Store(root)
    assert steps(store) in allowed
    for checkpoint in store.checkpoints():
        assert not list(checkpoint.problems())
        for rank in range(WORLD):
            assert same(KINDS[kind].give(rank, checkpoint.step), read(checkpoint, rank))


def at(nth, act, reached):
    """Do something else at the nth change, and note that it came to that."""
    seen = itertools.count()

    def noted(call, perform):
        if next(seen) != nth:
            return perform()
        reached.append(call.name)
        return act(call, perform)

    return noted


@sized
def disk_fails(kind, place, rank, stride=1, turn=0):
    """Refuse every `stride`-th change of that rank: one kind of error on all, and the next save of all succeeds."""
    first, refused = KINDS[kind].before, 0
    for number, nth in enumerate(itertools.count(0, stride)):
        (code, error), keep = WAYS[(number + turn) % len(WAYS)]
        root, reached = place / str(nth), []
        old = [*range(1, first + 1)][-keep:]

        def work(store, root=root, keep=keep, act=at(nth, failing(0, code), reached), old=old):  # noqa: B008
            ranks = store.ranks
            begun(store, kind)
            try:
                with door(act) if ranks.rank == rank else nullcontext():
                    found = type(further(store, kind, first + 1))
            except StoreError as raised:
                found = type(raised)
            with ranks.together("looked"):
                if ranks.rank == 0:
                    both = [*old, first + 1]
                    all_whole(root, kind, old, both, both[-keep:])
            further(store, kind, first + 2)
            store.close()
            return found

        outcomes = among(WORLD, root, work, keep=Last(keep))
        assert not failed(outcomes)
        assert set(outcomes) in ({error}, {Checkpoint})
        refused += set(outcomes) == {error}
        all_whole(root, kind, [*old, first + 2][-keep:], [*old, first + 1, first + 2][-keep:])
        assert not list((root / "attempts").glob("*/step-*"))
        if not reached:
            break
    assert refused >= 8 // stride > 0
    return refused


@sized
def is_fenced(kind, place, rank, stride=1):
    """A successor comes before every `stride`-th change of that rank: all are superseded, or their save was over."""
    first, superseded = KINDS[kind].before, 0
    for nth in itertools.count(0, stride):
        root, found, reached = place / str(nth), [], []

        def succeed(call, perform, root=root, found=found):
            claiming.claim(root, take_over=True)
            found.extend(steps(Store(root)))
            return perform()

        def work(store, act=at(nth, succeed, reached)):  # noqa: B008
            begun(store, kind)
            with door(act) if store.ranks.rank == rank else nullcontext():
                return further(store, kind, first + 1)

        came = {*kinds(among(WORLD, root, work, keep=Last(1)))}
        if not reached:
            assert came == {Checkpoint}
            break
        assert came <= {Superseded, Checkpoint}
        assert came == {Superseded} or first + 1 in found
        superseded += came == {Superseded}
        all_whole(root, kind, found)
        assert ["attempt-2.jsonl"] == [path.name for path in (root / "attempts/2").iterdir()]
    assert superseded >= 8 // stride > 0
    return superseded


@sized
def power_is_lost(kind, stride=1):
    """Before each change that any rank makes, what was not synced, or any one of it, may be lost. A save that is over
    is there.
    """
    turn, seen, pictures = threading.Lock(), set(), []
    first = KINDS[kind].before

    def act(call, perform):
        with turn:
            for _, picture in memory.states():
                if picture.mark() not in seen:
                    seen.add(picture.mark())
                    pictures.append(picture)
            return memory(call, perform)

    def work(store):
        begun(store, kind)
        with store.ranks.together("settled"):
            if store.ranks.rank == 0:
                memory.settle()
        with door(act):
            return further(store, kind, first + 1)

    with scratched("together") as base:
        memory = Memory(base)
        assert not failed(among(WORLD, base / "run", work))
        files = Store(base / "run")[first + 1].manifest.files
        taken = {int(name.split("-")[1]) for name, file in files.items() if file.links}
        assert taken == ({*range(WORLD)} if kind == "shared" else set())
        pictures.append(memory.cord())
        memory.close()
    old, new = [*range(1, first + 1)], [*range(1, first + 2)]
    for picture in pictures[-1::-stride]:
        with scratched("after") as after:
            list(picture.build(after / "base"))
            all_whole(after / "base/run", kind, new, *([] if picture is pictures[-1] else [old]))
    assert len(pictures) > 30
    return len(pictures[-1::-stride])


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_fails_on_one_rank_fails_the_save_on_all(tmp_path, kind, rank):
    """Whichever change is refused: one error everywhere, the store as it was or with the new checkpoint; then a save
    succeeds.
    """
    disk_fails(kind, tmp_path, rank, STRIDE, rank)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_successor_at_any_change_of_a_rank_fences_all(tmp_path, kind, rank):
    """Each rank is superseded, or its save was over; nothing of them changes what the successor found."""
    is_fenced(kind, tmp_path, rank, STRIDE)


def test_a_power_loss_anywhere_in_a_save_leaves_the_old_or_the_new():
    """Whether it writes everything or shares most of it."""
    for kind in KINDS:
        power_is_lost(kind, 2)
