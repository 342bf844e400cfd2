"""Run: what a training loop holds. It restores on entry, saves at safe points, stops when asked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import interval, journal, retention
from ..data.feed import Feed, feed_for
from ..errors import Mismatch, NoSpace, Stopped, Superseded, UsageError
from ..interval import Mark
from ..provenance import document
from ..rules import Best, Every, Last, Rule, parts
from ..state import rng
from ..state.tree import types_in
from ..store import format
from ..store.checkpoint import Checkpoint
from ..store.store import Facts, Store
from ..terminal import Progress, say, warn
from . import fingerprint, resume, settings, weights
from .position import Position
from .resume import Resumed
from .stop import Deadline, Stop
from .tracked import RESERVED, Digests, Tracked, adapter_for, digests, framework_modules
from .vars import Vars
from .weights import StartFrom

_NESTING = {(): ("epochs", "steps", "batches"), ("epochs",): ("batches",)}


class Run(AbstractContextManager["Run"]):
    """Makes the loop inside its `with` block survive: restored on entry, saved on the way, stopped in time.

        with Run("runs/digits", dict(model=model, optimizer=optimizer)) as run:
            for epoch in run.epochs(10):
                for x, y in run.batches(loader):
                    ...

    A save, a stop and a resume happen at safe points only: where the generators go on after the loop's body. When a
    signal or the deadline asks for it, the run saves at the next one and raises `Stopped`, which exits with 75.

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
        overrides: {"optimizer": {"lr": 1e-4}} sets options of tracked optimizers on the next resume, once.
        allow_fresh: start from scratch when checkpoints exist and none is valid.
        accept: changes of a loader to accept on resume although they move its position: {"batch_size"}.
        probe: called without arguments at each save and after the restore; the results must be the same bits.
        deadline: when the machine is taken away: a datetime, a timedelta from now, or Unix seconds.
        hyperparameters, dataset, note: for the document in each checkpoint; nothing reads them.
        tracker: called with (id, step), id None at first; what it returns is the id that it gets next time.
        types: enums, dataclasses and named tuples of yours that the state holds and that are not in it at the start.
        seed: of the data order; by default what the framework was seeded with.
        take_over: the caller knows that no other attempt of this run lives.
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
        tracker: Callable[[str | None, int], str] | None = None,
        types: Iterable[type] = (),
        seed: int | None = None,
        take_over: bool = False,
    ) -> None:
        self.path = settings.run_dir(path)
        self.vars = Vars(vars)
        self._tracked = Tracked(state)
        self._keep, self._every = keep, every
        self._start_from = source if isinstance(source := start_from, StartFrom | None) else StartFrom(source)
        self._branch_from, self._go_back = branch_from, go_back
        if self._start_from is not None and branch_from is not None:
            raise UsageError("start_from takes weights, branch_from goes on exactly: give one of them")
        self._overrides = {name: dict(changes) for name, changes in (overrides or {}).items()}
        self._require_overridable()
        self._allow_fresh, self._take_over = allow_fresh, take_over
        self._accept = {accept} if isinstance(accept, str) else set(accept)
        self._probe, self._tracker = probe, tracker
        self._deadline = deadline
        self._about = {"hyperparameters": hyperparameters, "dataset": dataset}
        self._note, self._types, self._seed = note, set(types), seed
        self._entered = False

    # -- entering and leaving ------------------------------------------------------------------------------------

    def __enter__(self) -> Run:
        if self._entered:
            raise UsageError("this Run is entered already")
        self._begin_attempt()
        self._stop.__enter__()
        try:
            self._restore()
        except BaseException as error:
            self._leave(error)
            raise
        self._progress.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._leave(error)
            return
        try:
            self._finish()
        except BaseException as last:
            self._leave(last)
            raise
        self._leave(None)

    def _begin_attempt(self) -> None:
        """All that belongs to one attempt, so that a Run may be entered again in the same process."""
        self._drilled = settings.drilled()
        self._store = Store(self.path, keep=self._keep, take_over=self._take_over)
        self._attempt = self._store.claim()
        self._stop, self._progress = Stop(self._deadline), Progress()
        self._position = Position()
        self._loops: list[str] = []
        self._walked: set[str] = set()
        self._feeds: dict[str, Feed] = {}
        self._reached: dict[str, tuple[Feed, int]] = {}  # loader name -> its feed, and batches consumed of its epoch
        self._logged: dict[str, float] = {}
        self._loaders: dict[str, Any] = {}  # fingerprints, by loader name
        self._epoch_rng: Any = None
        self._applied: dict[str, Any] = self._overrides
        self._resumed = Resumed()
        self._baseline: Digests | None = None  # the state as restored, until the first loop begins
        self._asked = self._outer_begun = self._outer_done = False
        self._steps_here = 0
        self._save_s, self._step_s, self._last_point = 0.0, 0.0, time.monotonic()
        self._last_save = Mark(0, 0, time.monotonic(), at_end=False)
        self._saved_name: format.Name | None = None
        self._document: dict[str, Any] | None = None
        self._entered = True

    def _leave(self, error: BaseException | None) -> None:
        """Say good-bye in the journal, give signals and terminal back. Never hides `error`."""
        try:
            if error is not None and not isinstance(error, Stopped | Superseded):
                with suppress(Superseded):
                    self._attempt.close("failed", **self._failure(error))
        finally:
            self._stop.__exit__()
            self._progress.close()
            self._entered = False

    def _failure(self, error: BaseException) -> dict[str, Any]:
        checkpoint = self._resumed.checkpoint
        return {
            "step": self._position.step,
            "error": resume.describe(error),
            "checkpoint": checkpoint.path.name if checkpoint else None,
            "counts": checkpoint is not None and self._steps_here == 0 and resume.counts(error),
        }

    def _finish(self) -> None:
        """The block has ended without an exception: save what is not saved yet, and stop if that was asked for."""
        position = self._position
        left_by_break = self._outer_begun and not self._outer_done
        if left_by_break:
            position.left = True
            if position.in_epoch:
                position.end_epoch()
            position.phase = "end"
        self._flush_metrics("exit" if not left_by_break else "end")
        unsaved = left_by_break or position.step > (self._saved_name.step if self._saved_name else 0)
        if unsaved and self._steps_here:
            self._save("the end", {})
        if self._stop.reason is not None:
            self._stop_now(self._stop.reason)
        self._attempt.close("end", step=position.step, phase=position.phase)

    # -- restoring -----------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        if self._go_back is not None:
            self._go_back_once(self._go_back)
        types = self._known_types()
        self._resumed = resume.restore_newest(self._store, self._tracked, types, allow_fresh=self._allow_fresh)
        if self._resumed.checkpoint is None and self._branch_from is not None:
            self._branch(weights.at(self._branch_from), types)
        if self._resumed.checkpoint is None:
            self._begin_fresh()
        else:
            self._remember(self._resumed.checkpoint, self._resumed.memory)
        self._track()

    def _known_types(self) -> set[type]:
        return self._types | self._tracked.types() | types_in(self.vars.state_dict())

    def _branch(self, checkpoint: Checkpoint, types: set[type]) -> None:
        memory = resume.restore(self._store, checkpoint, self._tracked, types)
        self._resumed = Resumed(checkpoint, memory)
        self._attempt.record("branched", source=str(checkpoint.path), step=checkpoint.step)

    def _go_back_once(self, step: int) -> None:
        newest = self._store.checkpoints()[-1:]
        memory = newest[0].load(part=RESERVED, placeholders=True) if newest else {}
        if step not in memory.get("position", {}).get("went_back", []):
            names = resume.go_back(self._store, step)
            say(f"{self.path}: goes back to step {step}; moved to quarantine: {', '.join(names) or 'nothing'}")

    def _begin_fresh(self) -> None:
        self._seed = self._seed if self._seed is not None else _framework_seed()
        self._attempt.record("restored", step=0, phase="step", checkpoint=None, rejected=self._resumed.rejected)
        self._attempt.flush(sync=True)
        say(f"{self.path}: starts fresh (attempt {self._attempt.number})")
        if self._start_from is not None:
            for name, report in weights.begin_from(self._start_from, self._tracked.objects).items():
                self._attempt.record("started_from", source=str(self._start_from.path), name=name, report=str(report))
                say(f"{name} starts from {self._start_from.path}: {report}")

    def _remember(self, checkpoint: Checkpoint, memory: dict[str, Any]) -> None:
        """Take up what the run itself remembered, in the order that exactness wants: random numbers last."""
        self._position = Position.of(memory["position"])
        if self._go_back is not None and self._go_back not in self._position.went_back:
            self._position.went_back.append(self._go_back)
        self.vars.load_state_dict(memory["vars"])
        self._seed, self._epoch_rng = memory["seed"], memory["epoch_rng"]
        self._loaders = memory["fingerprint"]["loaders"]
        self._applied = memory["overrides"]
        self._store.parent = checkpoint.name
        self._saved_name = checkpoint.manifest.name
        self._last_save = self._mark(at_end=self._position.phase == "end")
        self._announce(checkpoint, memory)
        self._override()
        self._check_probe(memory)
        self._baseline = self._digests()
        self._restore_rng()

    def _announce(self, checkpoint: Checkpoint, memory: dict[str, Any]) -> None:
        position, rejected = self._position, self._resumed.rejected
        self._attempt.record(
            "restored", step=position.step, phase=position.phase, checkpoint=checkpoint.name, rejected=rejected
        )
        age_s = max(0.0, time.time() - format.seconds(checkpoint.manifest.created))
        text = f"{self.path}: resumes at step {position.step}, epoch {position.epoch} (attempt {self._attempt.number})"
        say(f"{text}, from {checkpoint.name}, saved {_span(age_s)} ago")
        for name, why in rejected:
            warn(f"{name} was set aside (see {self.path / 'quarantine'}): {why}")
        for line in fingerprint.changes(memory["fingerprint"]["environment"], fingerprint.environment()):
            self._tell(line)
        self._attempt.flush(sync=True)

    def _tell(self, line: str) -> None:
        self._attempt.record("told", what=line)
        say(f"changed since the checkpoint: {line}")

    def _require_overridable(self) -> None:
        for name in self._overrides:
            if name not in self._tracked.objects:
                raise UsageError(f"overrides: nothing is tracked as {name!r}")

    def _override(self) -> None:
        """Apply `overrides`, unless this run has them behind it."""
        if self._overrides == self._applied:
            return
        for name, changes in self._overrides.items():
            if changes != self._applied.get(name):
                for line in _adapter_of(self._tracked.objects[name]).override(
                    self._tracked.objects[name], changes, self._tracked.objects.values()
                ):
                    self._attempt.record("override", name=name, what=line)
                    say(f"override: {name}: {line}")
        self._applied = self._overrides

    def _restore_rng(self) -> None:
        for skipped in rng.restore(self._resumed.memory["rng"]):
            self._tell(f"random numbers of {skipped} are in the checkpoint and cannot be put back here")

    def _check_probe(self, memory: dict[str, Any]) -> None:
        """Compare the probe's result with the one that was kept: the same bits, or a reason."""
        if self._probe is None or memory["probe"] is None:
            return
        if not digests({"probe": self._ask_probe()}).changed(digests({"probe": memory["probe"]})):
            return
        changed = fingerprint.changes(memory["fingerprint"]["environment"], fingerprint.environment())
        if not changed:
            raise Mismatch(f"{self.path}: after the restore the probe gives another result than before the save")
        warn(f"the probe's result differs from the one before the save; changed meanwhile: {'; '.join(changed)}")

    def _ask_probe(self) -> Any:
        """The probe's result; random numbers and training flags are as they were afterwards."""
        if self._probe is None:
            return None
        before = rng.capture()
        with _still(self._tracked.objects.values()):
            result = self._probe()
        rng.restore(before)
        return result

    def _track(self) -> None:
        if self._tracker is None:
            return
        ids = [e.get("id") for log in journal.logs(self.path) for e in log.events if e.get("event") == "tracker"]
        known = str(ids[-1]) if ids else None
        found = self._tracker(known, self._position.step)
        if found is not None and found != known:
            self._attempt.record("tracker", id=found)
        self._attempt.flush(sync=True)

    # -- loops ---------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Passes of the loop's body (or groups of them) completed."""
        return self._position.step

    @property
    def epoch(self) -> int:
        """The epoch in progress, or the next one; counted from 0."""
        return self._position.epoch

    def epochs(self, total: int) -> Generator[int, None, None]:
        """Yields the epochs that are still to do, up to `total`. After each one's body comes a safe point.

        `break` ends the run: a restart yields nothing, unless `total` was raised.
        """
        with self._inside("epochs"):
            position = self._position
            self._begin_outer(total)
            self._settle(ready=not position.in_epoch or position.current is None)
            while position.epoch < total and not position.left:
                if not position.in_epoch:
                    position.begin_epoch()
                    self._epoch_rng = rng.capture()
                self._walked.clear()
                self._progress.update(epoch=position.epoch, epochs=total)
                yield position.epoch
                self._require_settled()
                epoch = position.epoch
                position.end_epoch()
                self._safe_point("end", epoch=epoch, final=position.epoch >= total)
            self._outer_done = True

    def steps(self, total: int, name: str = "steps") -> Generator[int, None, None]:
        """Yields the steps that are still to do, up to `total`; inside `epochs`, those of this epoch.

        After each one's body comes a safe point. `break` ends the run.
        """
        if self._loops == ["epochs"]:
            yield from self.batches(range(total), name)
            return
        with self._inside("steps"):
            position = self._position
            self._begin_outer(total)
            self._settle()
            while position.step < total and not position.left:
                yield position.step
                self._step_done(final=position.step + 1 >= total)
            self._outer_done = True

    def batches(self, loader: Iterable[Any], name: str = "train", accumulate: int = 1) -> Generator[Any, None, None]:
        """Yields the batches of `loader` that are still to do in this epoch; its position is kept under `name`.

        After each body, or each group of `accumulate`, comes a safe point; the last group of an epoch may be short.
        After a `break` the rest of the epoch's batches is left out, and the step that was left does not count.
        """
        if accumulate < 1:
            raise UsageError(f"accumulate={accumulate}: at least 1")
        with self._inside("batches"):
            if name in self._walked:
                raise UsageError(
                    f"run.batches(..., name={name!r}) a second time in one epoch: give each loop its own name, and go "
                    "through epochs with run.epochs()"
                )
            self._walked.add(name)
            position = self._position
            if not position.in_epoch:
                position.begin_epoch()
                self._epoch_rng = rng.capture()
            if position.loaders.get(name, {}).get("done"):
                return
            feed = self._feed(loader, name, accumulate)
            yield from self._consume(feed, name, accumulate)
            if "epochs" not in self._loops:
                self._safe_point("end", final=True)

    def _consume(self, feed: Feed, name: str, accumulate: int) -> Generator[Any, None, None]:
        position = self._position
        consumed = position.loaders.get(name, {}).get("consumed", 0)
        with closing(self._open(feed, name, consumed)) as batches:
            self._settle(ready=position.current in (None, name))
            position.current = name
            try:
                for batch in batches:
                    yield batch
                    consumed += 1
                    if consumed % accumulate == 0:
                        self._consumed(name, feed, consumed)
                if consumed % accumulate:
                    self._consumed(name, feed, consumed)
            finally:  # also after `break`: the rest of the epoch's batches is left out, then and after a resume
                position.current = None
                position.loaders[name] = {"consumed": consumed, "done": True}

    def _consumed(self, name: str, feed: Feed, consumed: int) -> None:
        self._reached[name] = (feed, consumed)
        self._position.loaders[name] = {"consumed": consumed, "done": False}
        self._step_done()

    def _open(self, feed: Feed, name: str, consumed: int) -> Generator[Any, None, None]:
        """The batches that are still to do. A feed that must be replayed sees the random numbers of its epoch's start."""
        first = name not in self._reached
        if consumed and feed.replays:
            warn(f"loader {name!r} cannot be positioned: {consumed} batches of it are read again and dropped")
            rng.restore(self._epoch_rng)
        self._reached[name] = (feed, consumed)
        return _closable(feed.open(self._position.epoch, self._position.feeds.get(name) if first else None))

    def _feed(self, loader: Iterable[Any], name: str, accumulate: int) -> Feed:
        if name not in self._feeds:
            assert self._seed is not None
            self._feeds[name] = feed_for(loader, self._seed, name)
        now = {**self._feeds[name].describe(), "accumulate": accumulate}
        if name in self._loaders:
            for line in fingerprint.loader_changes(name, self._loaders[name], now, self._accept):
                self._tell(line)
        self._loaders[name] = now
        return self._feeds[name]

    def safe_point(self) -> None:
        """One step is done and the state is whole: save if it is time, stop if that was asked for.

        For loops of another shape; `epochs`, `steps` and `batches` have safe points of their own.
        """
        if self._loops and self._loops[-1] != "epochs":
            raise UsageError("run.batches() and run.steps() are followed by a safe point of their own")
        self._baseline = None
        self._step_done()

    def save(self) -> None:
        """Save: at the next safe point inside a loop of this run, at once elsewhere."""
        if self._loops:
            self._asked = True
        else:
            self._baseline = None
            self._save("asked", self._flush_metrics(self._position.phase))

    def log(self, **metrics: Any) -> None:
        """Note numbers about the step in progress, or the epoch after its last step.

        They become one line of the metrics log when the step is done; a checkpoint taken there carries them.
        """
        self._logged.update({name: format.number(name, value) for name, value in metrics.items()})

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics log so far, over all attempts: no step twice, none missing."""
        self._attempt.flush()
        return journal.metrics(self.path)

    # -- safe points ---------------------------------------------------------------------------------------------

    @contextmanager
    def _inside(self, kind: str) -> Iterator[None]:
        loops = self._loops
        if not self._entered:
            raise UsageError(f"run.{kind}() belongs inside `with Run(...) as run:`")
        if kind not in _NESTING.get(tuple(loops), ()):
            raise UsageError(
                f"run.{kind}() inside run.{loops[-1]}(): a safe point of the inner loop would lie in the middle of the "
                "outer one's body. Walk two loaders side by side with run.batches(zip(a, b))"
            )
        loops.append(kind)
        try:
            yield
        finally:
            if kind in loops:
                loops.remove(kind)

    def _begin_outer(self, total: int) -> None:
        position = self._position
        if position.target is not None and position.target != total:
            self._attempt.record("extended", was=position.target, now=total)
            say(f"{self.path}: was to end at {position.target}, now at {total}")
            position.left = position.left and total <= position.target
        position.target = total
        self._outer_begun, self._outer_done = True, False

    def _settle(self, *, ready: bool = True) -> None:
        """The first loop begins after a restore: undo what the code before it did to the state, and say so."""
        if self._baseline is None:
            return
        changed = self._baseline.changed(self._digests())
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            warn(f"code before the loop changed the restored state; put back: {', '.join(changed[:3])}{more}")
            self._attempt.record("put_back", leaves=changed[:100])
            assert self._resumed.checkpoint is not None
            self._tracked.restore(self._resumed.checkpoint, self._known_types())
            self.vars.load_state_dict(self._resumed.memory["vars"])
            self._reapply_overrides()
        if ready:
            self._restore_rng()
            self._baseline = None

    def _reapply_overrides(self) -> None:
        before, self._applied = self._resumed.memory["overrides"], self._applied
        if before != self._applied:
            self._applied = before
            self._override()

    def _require_settled(self) -> None:
        if self._baseline is not None:
            raise Mismatch(
                f"{self.path}: the checkpoint lies inside the loop {self._position.current!r}, and run.batches(..., "
                f"name={self._position.current!r}) did not begin in this epoch"
            )

    def _digests(self) -> Digests:
        return digests({**self._tracked.capture(), "vars": self.vars.state_dict()})

    def _step_done(self, *, final: bool = False) -> None:
        self._position.step += 1
        self._steps_here += 1
        self._safe_point("step", final=final)

    def _safe_point(self, phase: str, *, epoch: int | None = None, final: bool = False) -> None:
        """The one place where a run saves and stops."""
        position = self._position
        position.phase = phase
        self._steps_here += phase == "end"
        metrics = self._flush_metrics(phase, epoch)
        now = self._mark(epoch, at_end=phase == "end")
        self._step_s = max(self._step_s if self._steps_here > 2 else 0.0, now.seconds - self._last_point)
        self._last_point = now.seconds
        if self._drilled.digests:
            self._journal_digests()
        limit = self._drilled.steps is not None and position.step >= self._drilled.steps and phase == "step"
        wanted = "drill limit" if limit else self._stop.wanted(save_s=self._save_s, step_s=self._step_s)
        reason = wanted or self._reason_to_save(now, metrics, final=final)
        self._progress.update(step=position.step, metrics=metrics)
        if reason is not None:
            self._save(reason, metrics, epoch)
        if wanted is not None:
            self._stop_now(wanted)
        self._last_point = time.monotonic()

    def _reason_to_save(self, now: Mark, metrics: Mapping[str, float], *, final: bool) -> str | None:
        every = self._every
        if self._drilled.save_every_steps is not None:
            every = Every(steps=self._drilled.save_every_steps)
        reasons = {
            "the end": final,
            "asked": self._asked,
            "new best": self._is_best(metrics),
            "due": interval.due(every, last=self._last_save, now=now),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _is_best(self, metrics: Mapping[str, float]) -> bool:
        rules = [rule for rule in parts(self._keep) if isinstance(rule, Best) and rule.metric in metrics]
        if not rules:
            return False
        known = self._store.facts()
        return any(retention.beats(metrics[rule.metric], rule, known) for rule in rules)

    def _mark(self, epoch: int | None = None, *, at_end: bool) -> Mark:
        position = self._position
        ended = position.epoch - 1 if at_end and epoch is None else epoch
        return Mark(position.step, position.epoch if ended is None else max(0, ended), time.monotonic(), at_end)

    def _flush_metrics(self, phase: str, epoch: int | None = None) -> dict[str, float]:
        """Turn what was logged since the last safe point into a line; the numbers."""
        values = format.unpack_metrics(self._logged)
        if values:
            where = self._position.epoch if epoch is None else epoch
            self._attempt.record(
                "metrics", step=self._position.step, phase=phase, epoch=where, values=dict(self._logged)
            )
            self._logged.clear()
        return values

    def _journal_digests(self) -> None:
        self._attempt.record(
            "digests",
            step=self._position.step,
            phase=self._position.phase,
            leaves=digests({**self._tracked.capture(), RESERVED: self._memory(probe=False)}).of,
        )
        self._attempt.flush()

    def _save(self, reason: str, metrics: Mapping[str, float], epoch: int | None = None) -> None:
        """Commit the state. A full disk lets the loop go on, loudly, unless this save is the last chance."""
        began = time.monotonic()
        self._attempt.flush(sync=True)  # metrics before the checkpoint that follows them: no step may miss its line
        facts = self._facts(metrics, epoch)
        state = {**self._tracked.capture(), RESERVED: self._memory()}
        try:
            checkpoint = self._store.save(state, step=self._position.step, facts=facts)
        except NoSpace as error:
            if reason not in ("due", "new best"):
                raise
            warn(f"not saved, training goes on: {error}")
            self._attempt.record("save_failed", step=self._position.step, error=str(error))
            self._last_save = self._last_save._replace(seconds=time.monotonic())
            return
        self._asked = False
        self._save_s = max(self._save_s, time.monotonic() - began)
        self._last_save = self._mark(epoch, at_end=facts.phase == "end")
        self._saved_name = checkpoint.manifest.name
        self._attempt.record(
            "saved",
            step=self._position.step,
            phase=facts.phase,
            checkpoint=checkpoint.name,
            stall_s=round(time.monotonic() - began, 6),
            size_bytes=checkpoint.size_bytes,
            reason=reason,
        )
        self._attempt.flush()

    def _facts(self, metrics: Mapping[str, float], epoch: int | None) -> Facts:
        if self._document is None:
            models = {name: facts for name, target in self._tracked.objects.items() if (facts := _model_facts(target))}
            self._document = {**document(**self._about), "model": models}
        where = self._position.epoch if epoch is None else epoch
        return Facts(self._position.phase, where, metrics, self._note, self._document)

    def _memory(self, *, probe: bool = True) -> dict[str, Any]:
        """What the run itself remembers. Random numbers are captured last."""
        position = self._position
        position.feeds |= {name: dict(feed.position(consumed)) for name, (feed, consumed) in self._reached.items()}
        return {
            "position": position.state_dict(),
            "vars": self.vars.state_dict(),
            "seed": self._seed,
            "overrides": self._applied,
            "fingerprint": {"environment": fingerprint.environment(), "loaders": self._loaders},
            "probe": self._ask_probe() if probe else None,
            "epoch_rng": self._epoch_rng,
            "rng": rng.capture(),
        }

    def _stop_now(self, reason: str) -> None:
        position = self._position
        self._attempt.close("stop", reason=reason, step=position.step, phase=position.phase)
        say(f"{self.path}: stopped by {reason} at step {position.step}; saved, run me again")
        raise Stopped(f"{reason} at step {position.step}; saved")


def _closable(batches: Iterator[Any]) -> Generator[Any, None, None]:
    """`batches` as a generator: `close` reaches it, whatever kind of iterator it is."""
    try:
        yield from batches
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def _framework_seed() -> int:
    return next((int(module.initial_seed()) for module in framework_modules()), 0)


def _adapter_of(target: Any) -> Any:
    adapter = adapter_for(target)
    if adapter is None or not hasattr(adapter, "override"):
        raise UsageError(f"overrides: a {type(target).__qualname__} has no options to override")
    return adapter


def _model_facts(target: Any) -> dict[str, Any] | None:
    adapter = adapter_for(target)
    count = adapter.parameter_count(target) if adapter is not None else None
    return None if count is None else {"class": adapter.class_name(target), "parameters": count}


@contextmanager
def _still(targets: Iterable[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for module in framework_modules():
            stack.enter_context(module.still(targets))
        yield


def _span(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
