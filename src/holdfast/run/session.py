"""Session: everything that belongs to one attempt of a run, while it lives."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import retention
from ..data.feed import MOVES, Feed
from ..errors import Stopped, UsageError
from ..interval import Mark
from ..provenance import document
from ..rules import Every, Rule, Whole
from ..state import rng
from ..state.codec import Block
from ..state.snapshot import Arena, Snapshot, pin_of
from ..state.tree import flatten, types_in
from ..store import format
from ..store.shards import Staged
from ..store.store import Facts, Store
from ..terminal import Progress, say, speak_for, warn
from . import fingerprint, settings
from .means import Means
from .objects import model_facts
from .position import Position
from .ranks import facts, here, present, require_alike
from .readback import ReadBack
from .resume import Resumed
from .stop import Deadline, Stop
from .tracked import RESERVED, Digests, Tracked, adapter_for, digests, framework_modules, still
from .vars import Vars
from .walks import Walks
from .watch import Watch
from .weights import StartFrom
from .windows import MOST_POINTS, Windows
from .witness import Witness
from .writer import Writer

if TYPE_CHECKING:
    from ..board import Board
    from .standing import Standing

WARM_BYTES = 64 << 20  # of a state whose snapshots are worth the preparation


class Options(msgspec.Struct, frozen=True):  # a dataclass of so many fields would cost a millisecond of every start
    """What the caller said, as `Run` describes it."""

    path: Path
    keep: Rule
    every: Every | None
    start_from: StartFrom | None
    branch_from: Any
    go_back: int | None
    overrides: Mapping[str, Mapping[str, Any]]
    allow_fresh: bool
    accept: Collection[str]
    probe: Callable[[], Any] | None
    deadline: Deadline | None
    hyperparameters: Mapping[str, Any] | None
    dataset: object
    note: str | None
    tracker: Callable[[str | None, int], str | None] | None
    types: frozenset[type]
    seed: int | None
    take_over: bool
    background: bool
    whole: Whole
    board: bool | str | os.PathLike[str]

    def __post_init__(self) -> None:
        if not isinstance(self.keep, Rule):
            raise UsageError(f'keep={self.keep!r}: give a rule, as in Last(3) | Best("val_acc", max)')
        if not isinstance(self.every, Every | None):
            raise UsageError(
                f"every={self.every!r}: give Every(steps=1000), Every(minutes=10), Every(epochs=1) or None"
            )
        if not isinstance(self.whole, Whole):
            raise UsageError(f"whole={self.whole!r}: give a value, as in Whole(checkpoints=20, hours=24)")
        for change in self.accept:
            if change not in MOVES:
                raise UsageError(f"accept={change!r}: what a loader can change is {', '.join(sorted(MOVES))}")
        for kind in self.types:
            if not isinstance(kind, type):
                raise UsageError(f"types={kind!r}: give the classes themselves, as in types=[Colour, Point]")


class Source(msgspec.Struct):
    """What came under a name in run.batches(), and how it is walked."""

    loader: Any
    feed: Feed
    begins: Any = None  # where its first walk goes on: what its predecessor, or an earlier attempt, had reached


class Flight(msgspec.Struct, frozen=True):
    """A save on its way to the disk, and what it takes the place of."""

    name: format.Name
    reason: str
    facts: Facts
    last_chance: bool
    before: format.Name | None  # the newest save, should this one come to nothing
    began_s: float
    stall_s: float  # but for a copy during which it began
    snapshot: Snapshot | None = None  # what is written, if the loop copies it

    def ranks(self) -> retention.Facts:
        """What a new best has to beat, before the checkpoint is there."""
        name, facts = self.name, self.facts
        return retention.Facts(
            str(name), name.step, name.phase, facts.epoch, time.time(), facts.metrics, size_bytes=0, pinned=False
        )


class Session:
    """One attempt: the parts that its loops, saves and restores share."""

    def __init__(self, options: Options, tracked: Tracked, variables: Vars) -> None:
        self.options, self.tracked, self.vars = options, tracked, variables
        self.watch = Watch(tracked, variables)
        self.ranks = here()
        speak_for(self.ranks.rank)
        self.position = Position()
        self._agree()
        self._claim()
        self.around = ExitStack()  # what holds while the attempt lives
        self.left = False  # its block has ended, or without one its outermost loop
        self.over: Stopped | None = None  # it has stopped, and does nothing any more

        # where it is, besides the position
        self.walks = Walks()
        self.standing: Standing | None = None  # it has no block: it ends with its outermost loop
        self.steps_here = self.saves_here = 0  # safe points passed, and saves made, by this attempt
        self.last_point_s = time.monotonic()
        self.step_s = 0.0

        # what it remembers besides the tracked objects
        self.seed = options.seed
        self.loaders: dict[str, Any] = {}  # fingerprints by name
        self.sources: dict[str, Source] = {}
        self.reached: dict[str, tuple[Feed, int]] = {}  # the loader in progress: its feed, and batches consumed of it
        self.epoch_rng: Any = None  # random numbers as the body of the present epoch began

        # where it came from
        self.resumed = Resumed()
        self.baseline: Digests | None = None  # the state as restored, until the first loop begins
        self._document: dict[str, Any] | None = None

        # what it has measured
        self.logged: dict[str, float | str] = {}
        self.early: set[str] = set()  # of these, what was measured before the step began
        self.means = Means()
        self.flushed_s = self.noted_s = self.began_s = time.monotonic()
        self.missed: set[str] = set()  # metrics of `Best` that were not logged, and told so
        self.shared_metrics: set[str] = set()  # of `Best`, inside of epochs: those that all ranks log, as far as known
        self.ranked: list[retention.Facts] | None = None  # what a new best has to beat; None: look again
        self.board: Board | None = None

        # what it has saved, and what is to be saved next
        self.saved: format.Name | None = None  # or about to be: the one in flight
        self.flight: Flight | None = None
        self.save_s = 0.0
        self.last_save = Mark(0, 0, time.monotonic(), at_end=False)
        self.saved_at = 0  # the safe point of the last save, as windows count them
        self.asked = False  # run.save() inside a loop
        self.wished = False  # rank 0 was told of the signal that reached this rank
        self.cramped = False  # there was no memory for a snapshot, and it was told
        self.writer, self.arena = Writer(), Arena()
        self.readback = ReadBack(self.store, self._tell_damage)

    def _agree(self) -> None:
        """Look at what decides how the attempt goes, and compare it with the other ranks."""
        ranks, options = self.ranks, self.options
        with ranks.together("options"):
            self.drilled = settings.drilled()
            self.witness = Witness(self.tracked.objects | self.tracked.inside()) if self.drilled.digests else None
            self.stop, self.progress = Stop(options.deadline), Progress()
            from .job_clock import JobClock  # what asks schedulers is not in every `import holdfast`

            self.job_clock = JobClock(
                options.path, self.stop, own_deadline=options.deadline is not None, rank=ranks.rank
            )
            said = {} if ranks.alone else facts(options, self.tracked, self.vars, self.drilled)
        require_alike(ranks, said)
        if not ranks.alone:
            ranks.place = lambda: f"step {self.position.step}, epoch {self.position.epoch}"
        most_points = 1 if self.drilled.digests else MOST_POINTS  # a drill's kill is answered where it struck
        self.windows = None if ranks.alone else Windows(ranks, most_points=most_points)

    def _claim(self) -> None:
        """Own the run, when it is this attempt's turn."""
        options = self.options
        with present(self.ranks):
            self.store = Store(
                options.path,
                keep=options.keep,
                take_over=options.take_over,
                whole=options.whole,
                ranks=self.ranks,
            )
            if not options.take_over:
                self.job_clock.await_turn(self.store.root)
            self.attempt = self.store.claim()

    def begin_listening(self) -> None:
        """Take the signals, and keep them from the workers of loaders."""
        if self.standing is None:
            self.around.enter_context(self.stop)
        else:
            self.around.callback(self.stop.__exit__)  # entered when a loop begins
        self.around.callback(self.sources.clear)  # persistent workers end here, not when a collector comes by
        self.around.callback(self.readback.close)
        self.around.callback(self.job_clock.close)
        for module in framework_modules():
            self.around.enter_context(module.sheltered())

    def begin_board(self) -> None:
        """Keep a board, if that was asked for, until the attempt has said good-bye; of a drilled run, beside that run."""
        asked = self.options.board
        if asked is not False:
            from ..board import Board

            directory = None if asked is True or settings.is_drilled() else asked
            self.board = Board(self.path, directory, only=self.attempt.number)
            self.around.callback(self.show_board)
            self.show_board()

    def show_board(self) -> None:
        """Bring the board in line with the journal. A board that cannot be written ends no training."""
        try:
            if self.board is not None:
                self.board.update()
        except OSError as error:
            self.board = None
            warn(f"the board is not kept up any more: {error}; Board({str(self.path)!r}).update() makes it whole")

    @property
    def path(self) -> Path:
        return self.options.path

    def types(self) -> set[type]:
        """The caller's types that a checkpoint may name."""
        return {*self.options.types, *self.tracked.types(), *types_in(self.vars.state_dict())}

    @property
    def here(self) -> format.Name:
        """The name of a checkpoint of the present position."""
        return format.Name(self.position.step, self.position.phase)

    @property
    def is_over(self) -> bool:
        """Whether this process does nothing any more for the run, in this attempt."""
        return self.left or self.over is not None or self.attempt.inherited

    def require_alive(self) -> None:
        """
        Raises:
            Stopped: once more; the first was swallowed, by a bare `except:` perhaps.
            UsageError: a generator outlived its block, or went on in a forked child.
        """
        if self.over is not None:
            raise Stopped(self.over.reason)
        if self.left or self.attempt.inherited:
            whose = "its block has ended" if self.left else "it belongs to the parent of this forked process"
            raise UsageError(f"{self.path}: this loop is not the run's any more: {whose}")

    def digests(self) -> Digests:
        """What identifies the tracked objects, and the variables that were restored, as they are now."""
        known = self.resumed.memory["vars"]
        variables = {f"run.vars.{name}": value for name, value in self.vars.state_dict().items() if name in known}
        return digests(self.tracked.capture() | variables)

    def memory(self, *, probe: bool = True) -> dict[str, Any]:
        """What the run itself remembers. Random numbers are captured last."""
        position = self.position
        position.feeds |= {name: dict(feed.position(consumed)) for name, (feed, consumed) in self.reached.items()}
        return {
            "position": position.state_dict(),
            "vars": self.vars.state_dict(),
            "seed": self.seed,
            "overrides": {name: dict(changes) for name, changes in self.options.overrides.items()},
            "fingerprint": {"environment": fingerprint.environment(), "loaders": self.loaders},
            "probe": self.ask_probe() if probe else None,
            **({} if self.ranks.alone else {"reducers": self.tracked.reducers()}),
            **({"nested": nested} if (nested := self.tracked.nested()) else {}),
            **({"means": means} if (means := self.means.state_dict()) else {}),
            "epoch_rng": self.epoch_rng if position.in_epoch else None,
            "rng": rng.capture(),
        }

    def state(self) -> dict[str, Any]:
        """All that a checkpoint holds."""
        return {**self.tracked.capture(), RESERVED: self.memory()}

    def stage(self, *, background: bool) -> Staged:
        """The state ready to be written: for a save in the background, a copy of it, if memory allows.

        While the memory for the copy is being touched, no copy is made: writing the state takes no longer than a copy
        into fresh memory. A copy of one process that takes long is only laid out: the write begins first.
        """
        if background and self.arena.size_bytes == 0 and not self.cramped:
            self.warm_arena()
        state = self.state()
        if background and not self.arena.warming:
            try:
                staged = self.store.lay_out(state, self.arena)
                if staged.snapshot is not None and not (self.ranks.alone and staged.snapshot.is_long):
                    staged.snapshot.copy()
                return staged
            except MemoryError as error:
                if not self.cramped:
                    warn(f"{error}: saves stall the loop until they are durable")
                self.cramped = True
        return self.store.stage(state)

    def prepare_saves(self, blocks: Collection[Block]) -> None:
        """Begin what makes the first of them quick, beside the next steps."""
        if self.options.every is not None:
            self.warm_arena(blocks)
        if self.options.background:
            self.readback.begin(self.readback.over)

    def warm_arena(self, blocks: Collection[Block] | None = None) -> None:
        """Touch the memory of later snapshots beside the next steps: a first copy into it would stall the loop for long.

        After the first step, when optimizers have their state.
        """
        if not self.options.background:
            return
        blocks = flatten(self.tracked.capture()).leaves.values() if blocks is None else blocks
        size = sum(block.data.nbytes for block in blocks)
        if size >= WARM_BYTES:
            with suppress(MemoryError):  # the first save will say so
                self.arena.warm(size, pin_of(blocks))

    def ask_probe(self) -> Any:
        """The probe's result; random numbers and training flags are afterwards as they were."""
        if self.options.probe is None:
            return None
        before = rng.capture()
        with still(self.tracked.inside().values()):
            result = self.options.probe()
        rng.restore(before)
        return result

    def mark(self, epoch: int | None = None, *, at_end: bool) -> Mark:
        """This moment, for the interval. `epoch`: the one that has just ended, at its end."""
        now = self.position.epoch if epoch is None else epoch
        return Mark(self.position.step, now - self.position.first_epoch, time.monotonic(), at_end)

    def document(self) -> dict[str, Any]:
        """Where this attempt came from, for people; made once, and by rank 0."""
        if self.ranks.rank:
            return {}
        if self._document is None:
            models = {name: facts for name, target in self.tracked.inside().items() if (facts := model_facts(target))}
            made = document(self.options.hyperparameters, self.options.dataset)
            self._document = {**made, "model": models}
        return self._document

    def _tell_damage(self, line: str) -> None:
        self.attempt.record("told", what=line)
        warn(line)

    def tell(self, line: str) -> None:
        """Say and record that something is not as it was when the checkpoint was saved."""
        self.attempt.record("told", what=line)
        say(f"changed since the checkpoint: {line}")


def require_overridable(overrides: Mapping[str, Mapping[str, Any]], tracked: Tracked) -> None:
    """
    Raises:
        UsageError: an override names what is not tracked, or has no options.
    """
    for name in overrides:
        if name not in tracked.objects:
            raise UsageError(f"overrides: nothing is tracked as {name!r}, only {', '.join(tracked.objects)}")
        if adapter_for(tracked.objects[name]) is None:
            raise UsageError(
                f"overrides: {name!r} is a {type(tracked.objects[name]).__qualname__}, without options to set"
            )
