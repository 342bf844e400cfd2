"""Run: the object of a training loop. It restores on entry,
saves at safe points and stops on request.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from weakref import WeakSet

from .. import journal, settings
from ..errors import HoldfastError, StoreError, UsageError
from ..legible import legible
from ..mirror.options import DRAIN_S, Mirror, Place, parse_mirror_options
from ..rules import Auto, Every, Last, Rule, Whole, describe_unknown_argument
from ..state.captured import looked_once
from ..stateful.tracked import Tracked
from ..stateful.vars import Vars
from ..store import format, html
from ..store.signing import Signer
from ..store.store import Store
from ..terminal import warn
from . import opening, origin
from .blockless import BlocklessRun, end_run_at
from .finish import AttemptEnd
from .lifecycle import LoopLifecycle
from .loader_cursor import BatchesArguments, Loaders
from .loops import ForLoops, Loop
from .opening import LoopStart
from .options import Options, parse_seed
from .passes import (
    ENDLESS,
    LoopIterable,
    length_of,
    parse_accumulate,
    parse_epochs,
    parse_loader_name,
    parse_start,
    parse_steps,
)
from .safe_point import SafePoints
from .session import Session, require_overridable
from .stop import Deadline
from .weights import StartFrom

if TYPE_CHECKING:
    from ..track.options import TrackerOptions

_living: WeakSet[Run] = WeakSet()  # the runs whose block is entered here

Method = TypeVar("Method", bound=Callable[..., Any])


def shorten_traceback(method: Method) -> Method:
    """Remove Holdfast's frames from the traceback of a usage error. HOLDFAST_TRACEBACK=full
    keeps them.
    """
    known = inspect.signature(method).parameters
    any_name = any(each.kind is each.VAR_KEYWORD for each in known.values())
    whose = method.__qualname__.removesuffix(".__init__")

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        try:
            if strange := () if any_name else options.keys() - known:
                names = [name for name in known if name not in ("self", "state")]
                raise UsageError(describe_unknown_argument(f"{whose}(...)", min(strange), names))
            return method(*args, **options)
        except (HoldfastError, KeyboardInterrupt) as error:
            if os.environ.get("HOLDFAST_TRACEBACK") == "full":
                raise
            raise error.with_traceback(None) from None

    return cast("Method", call)


class Run(AbstractContextManager["Run"]):
    """Saves and resumes the loop inside its `with` block: restores on entry, saves on the way,
    stops in time.

        with Run("runs/digits", dict(model=model, optimizer=optimizer)) as run:
            for epoch in run.epochs(10):
                for x, y in run.batches(loader):
                    ...

    Without a block: `run = Run(...).start()`; the run then ends with its outermost loop.

    Saves, stops and resumes happen only at safe points: where the loops continue after their
    bodies. After a signal, or when the deadline requires it, the run saves at the next one and
    raises `Stopped`, which exits with 75.

    With several processes (torch.distributed, initialised before) each enters it, with the same
    arguments: docs/ranks.md.

    Args:
        path: the run's directory; HOLDFAST_RUN_DIR takes its place.
        state: names of the objects that make up the state, restored in place: anything with
            state_dict() and load_state_dict(), random generators, arrays, tensors, dicts, lists,
            deques, sets, these inside each other, and `Fields`. None is omitted.
        keep: which checkpoints stay.
        every: when to save besides the end, a stop and a new best; None: only then. `Auto()`
            chooses the interval.
        vars: first values of `run.vars`, which the loop itself changes. A restore fills values in
            place where possible (docs/exactness.md) and replaces the rest: numbers, strings,
            tuples.
        start_from: a run's or a checkpoint's directory; a *new* run begins with the weights of its
            models.
        branch_from: the same, but a new run continues exactly from there: position, optimizer,
            random numbers and all.
        go_back: a step to resume from, once; newer checkpoints are moved to quarantine/. A restart
            does not repeat it.
        overrides: {"optimizer": {"lr": 1e-4}} sets options of tracked optimizers on the next start,
            once.
        allow_fresh: start from scratch when checkpoints exist, or existed, and none is valid.
        accept: changes of a loader to accept on resume although they move its position:
            {"batch_size"}. "data": where no position can be restored, skip as many batches of a new
            pass and train the rest, which is not exact. "arguments": a batch job with other
            arguments than the last one, else refused, goes on with its run.
        probe: called without arguments at each save and after the restore; both results must have
            the same bits.
        deadline: when the machine is taken away: a datetime, a timedelta from now, or Unix seconds.
        hyperparameters, dataset, note: for the document in each checkpoint; Holdfast does not read
            them.
        tracker: called with (id, step), first with id None; its result is the id that it receives
            next time.
        types: your enums, dataclasses and named tuples that the state holds later, but not at the
            start.
        seed: of the data order; by default the framework's seed.
        take_over: the caller knows that no other attempt of this run is alive.
        private: keep all other users out of what the run writes, whatever the umask.
        background: periodic saves stall the loop only while the state is copied to memory. If one
            fails, a later safe point raises its error, with its own type. False: each save has
            returned before the loop continues.
        whole: how often unchanged leaves are written again instead of linked.
        track: trackers that get the metrics beside the loop, each step once, as in
            `track=[WandB("digits")]` of `holdfast.track` (docs/trackers.md).
        board: keep TensorBoard's files of the metrics log, in `<path>-board` or the directory
            given.
        mirror: places that get a copy of each checkpoint beside the loop, and that a new machine
            resumes from: a URL or folder, several, or {place: rule} (docs/mirrors.md).
        without: of these, the places that need not answer when the run begins; HOLDFAST_WITHOUT
            adds others.
        drain: seconds that the end of the run, or a stop, waits at most for the last copies.
        stop_on_nan: a save that finds infinite or NaN weights ends the run with NotFinite; no start
            goes on from it.
        finished: what a start of a finished run does when its loop has no pass left: "continue"
            behind it, where names that only the loop's body sets are missing, or "exit" the process
            with 0, on all ranks.
        signed: a file with a private Ed25519 key. It signs each checkpoint, and the run goes on
            from no other.
    """

    @shorten_traceback
    def __init__(
        self,
        path: str | os.PathLike[str],
        state: Mapping[str, Any],
        *,
        keep: Rule = Last(3),  # noqa: B008  a frozen value
        every: Every | Auto | None = Every(minutes=10),  # noqa: B008
        vars: Mapping[str, Any] | None = None,  # noqa: A002  it is `run.vars`
        start_from: str | os.PathLike[str] | StartFrom | None = None,
        branch_from: str | os.PathLike[str] | None = None,
        go_back: int | None = None,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        allow_fresh: bool = False,
        accept: Collection[str] = (),
        probe: Callable[[], Any] | None = None,
        deadline: Deadline | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        dataset: object = None,
        note: str | None = None,
        tracker: Callable[[str | None, int], str | None] | None = None,
        types: Iterable[type] = (),
        seed: int | None = None,
        take_over: bool = False,
        private: bool = False,
        background: bool = True,
        whole: Whole = Whole(),  # noqa: B008
        track: TrackerOptions | Iterable[TrackerOptions] = (),
        board: bool | str | os.PathLike[str] = False,
        mirror: Mirror = None,
        without: Place | Collection[Place] = (),
        drain: float = DRAIN_S,
        stop_on_nan: bool = False,
        finished: str = "continue",
        signed: str | os.PathLike[str] | None = None,
    ) -> None:
        if start_from is not None and branch_from is not None:
            raise UsageError(
                "start_from takes weights, branch_from goes on exactly: give one of them"
            )
        self.vars = Vars(vars)
        self._tracked = Tracked(state, self.vars)
        self._options = Options(
            path=settings.run_dir(path),
            keep=keep,
            every=every,
            start_from=start_from
            if isinstance(start_from, StartFrom | None)
            else StartFrom(start_from),
            branch_from=branch_from,
            go_back=go_back,
            overrides=_copy_overrides(overrides or {}),
            allow_fresh=allow_fresh,
            accept=frozenset([accept] if isinstance(accept, str) else accept),
            probe=probe,
            deadline=deadline,
            hyperparameters=hyperparameters,
            dataset=dataset,
            note=note,
            tracker=tracker,
            types=frozenset([types] if isinstance(types, type) else types),
            seed=parse_seed(seed),
            take_over=take_over,
            private=private,
            background=background,
            whole=whole,
            trackers=_parse_trackers(track),
            board=board,
            mirroring=parse_mirror_options(mirror, without, drain, settings.run_dir(path)),
            stop_on_nan=stop_on_nan,
            signer=None if signed is None else Signer(signed),
            finished=finished,
        )
        require_overridable(self._options.overrides, self._tracked)
        self._session: Session | None = None
        self._last: Session | None = None  # the session that has ended, for code after the block
        # set if the last one has no block: it ends with its outermost loop
        self._blockless: BlocklessRun | None = None

    @shorten_traceback
    def __enter__(self) -> Self:
        if self._session is not None:
            raise UsageError("this Run is entered already")
        self._begin(blockless=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        session = self._last
        # a forked child leaves the block: its parent has the run
        if session is None or session.attempt.is_in_forked_child:
            return
        if session.lifetime.left:  # by Loop.leave, or a finished run ends the process
            self._release_session()
            return
        if error is None:
            try:
                self._end.finish_run()
            except BaseException as last:
                self._end_block(last)
                raise
        self._end_block(error)

    @shorten_traceback
    def start(self) -> Self:
        """Begin without a block, for a loop at the top level of a script: `run = Run(...).start()`.
        Restores the state.

        The run finishes when its outermost loop ends, also by `break`; values logged afterwards
        belong to the end. After an exception, or if the process ends earlier, nothing is committed
        as finished. Signals stop the run only during the loop; otherwise Python handles them. A new
        Run at the same path in this thread ends this one.
        """
        if self._session is not None and self._blockless is None:
            raise UsageError("this Run is entered already")
        self._begin(blockless=True)
        return self

    def __repr__(self) -> str:
        step = f", step {self._last.position.step}" if self._last is not None else ""
        return f"<Run {os.fspath(self.path)!r}{step}>"

    def _repr_html_(self) -> str:
        return html.table(str(self), self.store().checkpoints())

    @property
    def path(self) -> os.PathLike[str]:
        """The run's directory."""
        return self._options.path

    def store(self) -> Store:
        """The run's checkpoints, with its `keep` rule: to save and load outside its block."""
        return self._options.store()

    @property
    def step(self) -> int:
        """Number of completed passes of the loop's body, or of groups of passes."""
        return self._last_session().position.step

    @property
    def epoch(self) -> int:
        """The epoch in progress, or the next one; counted from 0."""
        return self._last_session().position.epoch

    @shorten_traceback
    def epochs(self, total: int | range) -> LoopIterable[int]:
        """Return the remaining epochs, up to `total`. A safe point follows the body of each.

        run.epochs(range(1, 11)) counts them from 1; a run is begun and resumed with the same first
        epoch. `break` ends the run: a restart yields nothing, unless `total` was raised. An
        exception that you catch around the loop does the same; one that leaves the `with` block
        saves nothing.
        """
        session, wanted = self._open_session("epochs"), parse_epochs(total)
        loops = self._loops
        return LoopIterable(
            "epochs",
            lambda walk: loops.iterate_epochs(walk, wanted),
            lambda: len(wanted),
            lambda: max(0, session.position.epoch - wanted.start),
        )

    @shorten_traceback
    def steps(self, total: int = ENDLESS, name: str = "steps") -> LoopIterable[int]:
        """Return the remaining steps, up to `total`; inside `epochs`, those of this epoch.

        A safe point follows the body of each. run.steps() has no end except `break`. `break` ends
        the run, or inside `epochs` the steps of this epoch: a restart yields nothing, unless the
        total was raised. The step that was left counts.
        """
        session, loops = self._open_session("steps"), self._loops
        total, name = parse_steps(total), parse_loader_name(name)

        def length() -> int:
            if total == ENDLESS:
                raise TypeError("run.steps() without a total has no len(): it goes on until break")
            return total

        def done() -> int:
            position = session.position
            return position.consumed(name) if position.in_epoch else position.step

        return LoopIterable(
            "steps", lambda walk: loops.iterate_steps(walk, total, name), length, done
        )

    @shorten_traceback
    def batches(
        self, loader: Iterable[Any], name: str = "train", accumulate: int = 1
    ) -> LoopIterable[Any]:
        """Return the remaining batches of `loader` in this epoch; their position is saved under
        `name`.

        A safe point follows each body, or each group of `accumulate` bodies; the last group of an
        epoch may be short. After a `break` the rest of the epoch's batches is skipped, and the step
        that was left counts. len() is the number of batches of the whole epoch, and `done` the
        number of completed ones: tqdm(batches, initial=batches.done).
        """
        return self._iterate_loader("batches", BatchesArguments(loader, name, accumulate))

    def enumerate(
        self, loader: Iterable[Any], start: int = 0, name: str = "train", accumulate: int = 1
    ) -> LoopIterable[tuple[int, Any]]:
        """Like `batches`, but each batch comes with its index in the epoch,
        which a resume does not reset.
        """
        return self._iterate_loader(
            "enumerate", BatchesArguments(loader, name, accumulate, parse_start(start))
        )

    def _iterate_loader(self, what: str, served: BatchesArguments) -> LoopIterable[Any]:
        session, loops = self._open_session(what), self._loops
        name = parse_loader_name(served.name)
        served = served._replace(accumulate=parse_accumulate(served.accumulate))
        return LoopIterable(
            "batches",
            lambda walk: loops.iterate_batches(walk, served),
            lambda: length_of(served.loader, f"run.{what}()"),
            lambda: session.position.consumed(name),
        )

    @shorten_traceback
    def loop(self, epochs: int | range | None = None, steps: int | None = None) -> Loop:
        """Return the loop of a run that another program walks, as trainers do: its callbacks call
        the loop's methods.

        Give the number of epochs, or of steps in a loop without epochs. A loop of epochs that goes
        up to a number of steps takes both. docs/adapters.md shows one.
        """
        session = self._open_session("loop")
        if self._blockless is not None:
            raise UsageError("run.loop() wants a block, or run.__enter__(): leave() ends the run")

        def leave(error: BaseException | None) -> None:
            self.__exit__(None if error is None else type(error), error, None)

        return Loop(self._loops.loaders, session.capture.durations, leave, epochs, steps)

    def safe_point(self) -> None:
        """Mark a completed step with a consistent state: save if it is time, stop if requested.

        Use it in loops of another shape; `epochs`, `steps` and `batches` have their own safe
        points.
        """
        session = self._open_session("safe_point")
        inside = session.walks.kinds
        if inside and inside[-1] != "epochs":
            raise UsageError(
                "run.safe_point() inside run.batches() or run.steps(): each of their steps ends in "
                "a safe point already; remove the call"
            )
        if not inside and self._blockless is not None:
            raise UsageError(
                "run.safe_point() outside of a loop of this run: "
                "it ends with a block: with Run(...) as run:"
            )
        session.origin.set_baseline(None)
        self._loops.loops.points.step_done()

    @shorten_traceback
    def save(self) -> None:
        """Save at the next safe point inside a loop of this run, immediately elsewhere."""
        self._open_session("save")
        self._loops.loops.points.request_save()

    @shorten_traceback
    def wait(self) -> None:
        """Return when all earlier saves survive a power loss.

        Inside a loop's body, a save requested by `save` has not happened yet.

        Raises:
            StoreError: the save in flight failed or was discarded; the next safe point saves
                instead.
        """
        if self._ended_run is not None:
            self._last_session()  # the run has ended, and all is saved; otherwise this raises
            return
        session = self._open_session("wait")
        session.lifetime.require_running()
        flight = session.saves.flight
        session.saves.collect_outcome(last_chance=True)
        if flight is not None and session.saves.saved != flight.name:
            raise StoreError(
                f"{session.path}: {flight.name} was discarded; "
                "the state is saved at the next safe point"
            )

    @shorten_traceback
    def log(self, **metrics: Any) -> None:
        """Log values of the step in progress, or of the epoch after its last step.

        They become one line of the metrics log when the step is done; a checkpoint at that safe
        point contains them.
        """
        values = {
            legible(name): format.metric_value(name, value) for name, value in metrics.items()
        }
        if self._ended_run is None:
            self._open_session("log").metrics.log(values)
        else:
            self._last_session()  # raises the error with which the run ended
            self._ended_run.log_after_loop(values)

    @shorten_traceback
    def mean(self, name: str, weight: str | None = None) -> float:
        """Return the mean of metric `name` over this epoch's run.log() calls so far; outside
        `epochs`, over the run's.

        `weight` names another metric of the same calls: after run.log(loss=..., n=len(x)),
        run.mean("loss", weight="n") is the mean over samples. It covers this rank only, and has the
        same bits whether or not the run was resumed.
        """
        return self._last_session().metrics.means.mean(name, weight)

    @shorten_traceback
    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics log over all attempts, oldest first: each step once, without gaps."""
        if self._session is not None:
            self._session.attempt.flush()
        return journal.metrics(self._options.path)

    @property
    def _ended_run(self) -> BlocklessRun | None:
        """The ended run of start(), if it has ended."""
        return self._blockless if self._session is None else None

    def _last_session(self) -> Session:
        if self._last is None:
            raise UsageError("enter it first: with Run(...) as run:")
        if self._blockless is not None:
            self._blockless.raise_deferred_error()
        if self._session is not None:
            self._end.count_left_pass()
        return self._last

    def _open_session(self, what: str) -> Session:
        if self._last is not None:
            self._last_session()
        if self._session is None:
            if self._ended_run is None:
                raise UsageError(
                    f"run.{what}() belongs inside `with Run(...) as run:`, "
                    "or after run = Run(...).start()"
                )
            raise UsageError(
                f"run.{what}(): {self.path} has ended, "
                "with its outermost loop. What comes after that, a second loop "
                "for one, wants a block around all of it: with Run(...) as run:"
            )
        return self._session

    def _begin(self, *, blockless: bool) -> None:
        """Begin the attempt and restore the state; with `blockless` the run has no block."""
        used = self._last is not None and self._last.progress.steps_here > 0
        end_run_at(self._options.path)
        again = origin.take_ended_block(
            self._options.path, self._tracked, same_run=self._last is not None
        )
        self._session = self._last = session = Session(self._options, self._tracked)
        self._loops = _make_loops(session)
        self._end = end = self._loops.loops.end
        self._blockless = None
        if blockless:
            self._blockless = BlocklessRun(
                session.lifetime, session.progress, end, session.take_signals, self._release_session
            )
        _living.add(self)
        try:
            with looked_once():
                opening.install_signal_handlers(session, in_block=not blockless)
                opening.begin_attempt(session, again)
        except BaseException as error:
            self._end_block(error)
            raise
        if used and session.origin.checkpoint is None:
            warn(
                "the tracked objects are as the last attempt in "
                "this process left them; make them anew to begin anew"
            )
        if not blockless:
            session.display.begin(draws=session.ranks.leads)

    def _release_session(self) -> None:
        self._session = None
        _living.discard(self)

    def _end_block(self, error: BaseException | None) -> None:
        session = self._last
        self._release_session()
        if session is not None:
            self._end.release_attempt(error)


def _make_loops(session: Session) -> ForLoops:
    """Return the loops of an attempt, which take of it what they need."""
    loops = LoopLifecycle(
        session.lifetime,
        session.progress,
        session.metrics,
        session.reporter,
        session.display,
        LoopStart(session),
        SafePoints(session),
        AttemptEnd(session),
    )
    loaders = Loaders(
        loops,
        session.options.accept,
        session.ranks,
        session.store,
        session.capture,
        session.tracked,
        session.waiting,
        session.drill,
    )
    return ForLoops(loops, loaders, session.last_batch, session.options.finished)


def require_outside(path: str | os.PathLike[str], instead: str) -> None:
    """Require that no run of this directory is open in this process.

    Raises:
        UsageError: this process is inside the block of a run in that directory; `instead` names the
            alternative.
    """
    place = Path(path).resolve()
    if any(Path(each.path).resolve() == place for each in _living):
        raise UsageError(f"{os.fspath(path)}: this is inside of its run's block. {instead}")


def _parse_trackers(
    given: TrackerOptions | Iterable[TrackerOptions],
) -> tuple[TrackerOptions, ...]:
    if given == ():
        return ()
    from ..track.options import parse_trackers  # only such runs need it

    return parse_trackers(given)


def _copy_overrides(overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a copy of the overrides.

    Raises:
        UsageError: an entry is no mapping of options.
    """
    if not isinstance(overrides, Mapping) or not all(
        isinstance(options, Mapping) for options in overrides.values()
    ):
        raise UsageError(
            f"overrides={overrides!r}: give options by the name of a tracked object, "
            'as in overrides={"optimizer": {"lr": 1e-3}}'
        )
    return {name: dict(options) for name, options in overrides.items()}
