"""Run: what a training loop holds. It restores on entry, saves at safe points, stops when asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, Self
from weakref import WeakSet

from .. import journal
from ..errors import StoreError, Superseded, UsageError
from ..legible import legible
from ..rules import Every, Last, Rule, Whole
from ..store import format
from ..store.store import Store
from ..terminal import warn
from . import loops, opening, resume, saving, settings
from .ranks import blamed, parting
from .session import Options, Session, require_overridable
from .stop import Deadline
from .tracked import Tracked
from .vars import Vars
from .weights import StartFrom

living: WeakSet[Run] = WeakSet()  # whose blocks are entered in this process


class Run(AbstractContextManager["Run"]):
    """Makes the loop inside its `with` block survive: restored on entry, saved on the way, stopped in time.

        with Run("runs/digits", dict(model=model, optimizer=optimizer)) as run:
            for epoch in run.epochs(10):
                for x, y in run.batches(loader):
                    ...

    A save, a stop and a resume happen at safe points only: where the generators go on after the loop's body. When a
    signal or the deadline asks for it, the run saves at the next one and raises `Stopped`, which exits with 75.

    Of several processes (torch.distributed, initialised before) each enters it, with the same arguments: docs/ranks.md.

    Args:
        path: the run's directory; HOLDFAST_RUN_DIR takes its place.
        state: names of the objects that make up the state: anything with state_dict() and load_state_dict(), or a
            random generator.
        keep: which checkpoints stay.
        every: when to save besides the end, a stop and a new best; None: only then.
        vars: first values of `run.vars`, the numbers that the loop itself changes.
        start_from: a run's or a checkpoint's directory; a *new* run begins with the weights of its models.
        branch_from: the same, but a new run goes on exactly from there: position, optimizer, random numbers and all.
        go_back: a step to go on from, once; newer checkpoints are moved to quarantine/. A restart does not repeat it.
        overrides: {"optimizer": {"lr": 1e-4}} sets options of tracked optimizers on the next start, once.
        allow_fresh: start from scratch when checkpoints exist and none is valid.
        accept: changes of a loader to accept on resume although they move its position: {"batch_size"}.
        probe: called without arguments at each save and after the restore; the results must be the same bits.
        deadline: when the machine is taken away: a datetime, a timedelta from now, or Unix seconds.
        hyperparameters, dataset, note: for the document in each checkpoint; nothing reads them.
        tracker: called with (id, step), id None at first; what it returns is the id that it gets next time.
        types: enums, dataclasses and named tuples of yours that the state holds and that are not in it at the start.
        seed: of the data order; by default what the framework was seeded with.
        take_over: the caller knows that no other attempt of this run lives.
        background: periodic saves stall the loop only while the state is copied to memory; an error of one surfaces at
            a later safe point, with its own type. False: each save has returned before the loop goes on.
        overlap: what changes only in the step of a tracked optimizer is copied for a periodic save while the next
            forward and backward pass run. Writes elsewhere are noticed when they come in every round, or when the
            framework counts them; one through `.data` or a NumPy view, now and then, is not: then say False.
        whole: how often leaves that do not change are written anew instead of linked.
        board: keep TensorBoard's files of the metrics log, in `<path>-board` or the directory given.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        state: Mapping[str, Any],
        *,
        keep: Rule = Last(3),  # noqa: B008  a frozen value
        every: Every | None = Every(minutes=10),  # noqa: B008
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
        background: bool = True,
        overlap: bool = True,
        whole: Whole = Whole(),  # noqa: B008
        board: bool | str | os.PathLike[str] = False,
    ) -> None:
        if start_from is not None and branch_from is not None:
            raise UsageError("start_from takes weights, branch_from goes on exactly: give one of them")
        self.vars = Vars(vars)
        self._tracked = Tracked(state)
        self._options = Options(
            path=settings.run_dir(path),
            keep=keep,
            every=every,
            start_from=start_from if isinstance(start_from, StartFrom | None) else StartFrom(start_from),
            branch_from=branch_from,
            go_back=go_back,
            overrides={name: dict(changes) for name, changes in (overrides or {}).items()},
            allow_fresh=allow_fresh,
            accept=frozenset([accept] if isinstance(accept, str) else accept),
            probe=probe,
            deadline=deadline,
            hyperparameters=hyperparameters,
            dataset=dataset,
            note=note,
            tracker=tracker,
            types=frozenset([types] if isinstance(types, type) else types),
            seed=seed,
            take_over=take_over,
            background=background,
            overlap=overlap,
            whole=whole,
            board=board,
        )
        require_overridable(self._options.overrides, self._tracked)
        self._session: Session | None = None
        self._last: Session | None = None  # the one that has ended, for code after the block

    def __enter__(self) -> Self:
        if self._session is not None:
            raise UsageError("this Run is entered already")
        used = self._last is not None and self._last.steps_here > 0
        self._session = self._last = session = Session(self._options, self._tracked, self.vars)
        living.add(self)
        try:
            session.begin_listening()
            opening.begin(session)
        except BaseException as error:
            self._leave(error)
            raise
        if used and session.resumed.checkpoint is None:
            warn("the tracked objects are as the last attempt in this process left them; make them anew to begin anew")
        if session.ranks.rank == 0:
            session.progress.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._now().attempt.inherited:  # a forked child leaves the block: the run is its parent's
            return
        if error is None:
            try:
                self._finish(self._now())
            except BaseException as last:
                self._leave(last)
                raise
        self._leave(error)

    @property
    def path(self) -> os.PathLike[str]:
        """The run's directory."""
        return self._options.path

    def store(self) -> Store:
        """The run's checkpoints, with its rule, for those who save and load outside of its block."""
        options = self._options
        return Store(options.path, keep=options.keep, take_over=options.take_over, whole=options.whole)

    @property
    def step(self) -> int:
        """Passes of the loop's body (or groups of them) completed."""
        return self._now().position.step

    @property
    def epoch(self) -> int:
        """The epoch in progress, or the next one; counted from 0."""
        return self._now().position.epoch

    def epochs(self, total: int) -> Generator[int, None, None]:
        """Yields the epochs that are still to do, up to `total`. After each one's body comes a safe point.

        `break` ends the run: a restart yields nothing, unless `total` was raised. So does an exception that you catch
        around the loop; one that leaves the `with` block saves nothing.
        """
        return loops.epochs(self._inside("epochs"), total)

    def steps(self, total: int, name: str = "steps") -> Generator[int, None, None]:
        """Yields the steps that are still to do, up to `total`; inside `epochs`, those of this epoch.

        After each one's body comes a safe point. `break` ends the run.
        """
        return loops.steps(self._inside("steps"), total, name)

    def batches(self, loader: Iterable[Any], name: str = "train", accumulate: int = 1) -> Generator[Any, None, None]:
        """Yields the batches of `loader` that are still to do in this epoch; its position is kept under `name`.

        After each body, or each group of `accumulate`, comes a safe point; the last group of an epoch may be short.
        After a `break` the rest of the epoch's batches is left out, and the step that was left does not count.
        """
        return loops.batches(self._inside("batches"), loader, name, accumulate)

    def safe_point(self) -> None:
        """One step is done and the state is whole: save if it is time, stop if that was asked for.

        For loops of another shape; `epochs`, `steps` and `batches` have safe points of their own.
        """
        session = self._inside("safe_point")
        if session.loops and session.loops[-1] != "epochs":
            raise UsageError("run.batches() and run.steps() are followed by a safe point of their own")
        session.baseline = None
        saving.step_done(session)

    def save(self) -> None:
        """Save: at the next safe point inside a loop of this run, at once elsewhere."""
        session = self._inside("save")
        if session.loops:
            session.asked = True
            return
        session.require_alive()
        session.baseline = None
        if session.saved != session.here or session.flight is not None:
            saving.secure(session, "asked", saving.flush_metrics(session, session.position.phase))
        elif session.steps_here == 0 and session.saves_here:
            raise UsageError(
                f"run.save() twice at step {session.position.step}: outside of a loop of this run nobody counts the steps; "
                "call run.safe_point() after each, and run.save() after it when that one is to be saved"
            )

    def wait(self) -> None:
        """Return when what was saved so far survives a power loss; what `save` asked for inside a loop's body is not yet.

        Raises:
            StoreError: the save that was in flight failed, or was discarded; the next safe point makes that good.
        """
        session = self._inside("wait")
        session.require_alive()
        flight = session.flight
        saving.land(session, last_chance=True)
        if flight is not None and session.saved != flight.name:
            raise StoreError(f"{session.path}: {flight.name} was discarded; the state is saved at the next safe point")

    def log(self, **metrics: Any) -> None:
        """Note numbers about the step in progress, or about the epoch after its last step.

        They become one line of the metrics log when the step is done; a checkpoint taken there carries them.
        """
        session = self._inside("log")
        values = {legible(name): format.number(name, value) for name, value in metrics.items()}
        session.logged.update(values)
        session.early -= values.keys()

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics log over all attempts, oldest first: no step twice, none missing."""
        if self._session is not None:
            self._session.attempt.flush()
        return journal.metrics(self._options.path)

    def _now(self) -> Session:
        if self._last is None:
            raise UsageError("enter it first: with Run(...) as run:")
        return self._last

    def _inside(self, what: str) -> Session:
        if self._session is None:
            raise UsageError(f"run.{what}() belongs inside `with Run(...) as run:`")
        return self._session

    def _finish(self, session: Session) -> None:
        """The block has ended without an exception: save what is not saved yet, and stop if that was asked for."""
        session.require_alive()
        position = session.position
        metrics: dict[str, float] = {}
        if session.leave_outer():
            after, session.logged = session.logged, session.logged_inside
            metrics = saving.flush_metrics(session, "end")
            session.logged = after
        saving.flush_metrics(session, "exit")
        saving.land(session)
        if session.here.order > (session.saved or format.Name(0)).order:
            saving.save(session, "the end", metrics)
        reason = session.ranks.announce("the end", (session.stop.reason or session.ranks.wished() or "").encode())
        if reason:
            saving.stop_now(session, reason.decode())
        session.ranks.report("the end of the block")  # another rank may fail in it still, or take long
        with parting(session.ranks):
            session.attempt.close("end", step=position.step, phase=position.phase)

    def _leave(self, error: BaseException | None) -> None:
        """Say good-bye in the journal, give signals and terminal back. Never hides `error`."""
        session = self._now()
        self._session = None
        try:
            if error is not None:
                if session.over is None:
                    session.ranks.confess(error)
                _land_quietly(session)
                if session.over is None:
                    session.ranks.leave(f"has left with {resume.describe(error)}{_where(session)}")
            if error is not None and session.over is None and not isinstance(error, Superseded):
                with suppress(StoreError):  # nothing may hide the error itself
                    session.attempt.close("failed", **_failure(session, error))
                if isinstance(error, NameError) and session.steps_here == 0 and session.position.in_epoch:
                    warn(
                        "resumed inside an epoch; if it was after the last batch, the loop's body has not run, and what only "
                        "the body sets has no value: keep it in run.vars"
                    )
        finally:
            session.left = True
            living.discard(self)
            session.around.close()
            session.progress.close()
            session.arena.release()


def _land_quietly(session: Session) -> None:
    """The save in flight is as good as any, whatever ended the block."""
    try:
        saving.land(session)
    except Exception as error:
        warn(f"the save in flight failed: {error}")


def _failure(session: Session, error: BaseException) -> dict[str, Any]:
    checkpoint = session.resumed.checkpoint
    return {
        "step": session.position.step,
        "error": blamed(session.ranks, error, resume.describe(error)),
        "script": resume.script(),
        "checkpoint": checkpoint.path.name if checkpoint else None,
        "counts": session.steps_here == 0 and resume.counts(error) and not _may_be_anothers(session, error),
    }


def _where(session: Session) -> str:
    """Where a rank has left, for the others."""
    return f", at step {session.position.step}, epoch {session.position.epoch}"


def _may_be_anothers(session: Session, error: BaseException) -> bool:
    """Whether a rank may have been lost: a collective then fails here with a framework's own error, which is one of these."""
    return not session.ranks.alone and isinstance(error, RuntimeError)
