"""Store: the checkpoints of one run. `save` builds in the attempt's own room and commits by one rename."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import disk, retention
from ..errors import Damaged, NoSpace, NotFound, StoreError, UsageError
from ..provenance import document
from ..rules import Best, Rule, parts
from ..state import tree
from . import attempt as attempts
from . import format, shards
from .attempt import Attempt
from .checkpoint import Checkpoint, digest_file
from .format import MANIFEST, Manifest, Name

_MOST_LOOKS = 100  # at a store whose owner saves and prunes meanwhile
_SPARE_BYTES = 1 << 20  # for the manifest's fixed part, directories and the journal


@dataclass(frozen=True)
class Facts:
    """What a checkpoint says of itself besides its state. All of it is optional."""

    phase: str = "step"
    epoch: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None
    document: Mapping[str, Any] = field(default_factory=dict)


class Store:
    """The checkpoints in the directory `root`, saved, verified and pruned by the rule `keep`.

        store = Store("runs/x", keep=Last(3))
        store.save({"w": w}, step=100)
        state = store.load()

    Reading needs no permission and no care: other processes may save meanwhile. The first write claims the run; a
    second writer is refused by name while the first may live.
    """

    def __init__(self, root: str | os.PathLike[str], *, keep: Rule | None = None, take_over: bool = False) -> None:
        self.root = Path(root).absolute()  # the caller may change its directory
        self.keep = keep
        self.attempt: Attempt | None = None
        self.parent: str | None = None
        self._take_over = take_over or os.environ.get("HOLDFAST_TAKE_OVER") == "1"

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    # -- reading -------------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Checkpoint]:
        """Committed checkpoints, oldest first. Whether they are still what was committed, `verify` tells."""
        return [Checkpoint(self.root / "checkpoints" / str(name)) for name in self._names()]

    def latest(self) -> Checkpoint:
        """The newest committed checkpoint.

        Raises:
            NotFound: there is none.
        """
        found = self.checkpoints()
        if not found:
            raise NotFound(f"{self.root}: no committed checkpoint")
        return found[-1]

    def __getitem__(self, step: int | str) -> Checkpoint:
        """The checkpoint of `step` (the end of its epoch, if both are there), or the one with that name."""
        wanted = [name for name in self._names() if step in (name.step, str(name))]
        if not wanted:
            have = ", ".join(map(str, self._names()[-5:])) or "none"
            raise NotFound(f"{self.root}: no checkpoint of step {step}; the newest are: {have}")
        return Checkpoint(self.root / "checkpoints" / str(wanted[-1]))

    def best(self) -> Checkpoint:
        """The checkpoint that the newest one's `Best` rule ranks first.

        Raises:
            NotFound: no rule, or no checkpoint with that metric.
        """
        rule = self._best_rule()
        ranked = [checkpoint for checkpoint in self._readable() if rule.metric in checkpoint.metrics]
        values = {str(c.path): c.metrics[rule.metric] for c in ranked}
        sane = [c for c in ranked if values[str(c.path)] == values[str(c.path)]]  # NaN ranks nowhere
        if not sane:
            raise NotFound(f"{self.root}: no checkpoint has the metric {rule.metric!r}")
        top = rule.direction(values[str(c.path)] for c in sane)
        return next(c for c in sane if values[str(c.path)] == top)

    def load(self, step: int | str | None = None, *, types: Iterable[type] = (), placeholders: bool = False) -> Any:
        """The state of the newest valid checkpoint, of a step's, or of "best"; every byte is checked.

        A damaged newest one is passed over (told on the terminal by whoever asked, and by `verify`); a step that was
        asked for by number is not.

        Raises:
            NotFound: no such checkpoint.
            Damaged: none that would do is whole.
        """
        if step is not None:
            chosen = self.best() if step == "best" else self[step]
            return chosen.load(types=types, placeholders=placeholders)
        damage: list[Damaged] = []
        tried: set[str] = set()
        while fresh := [c for c in self.checkpoints() if c.path.name not in tried]:  # its owner may save and prune
            tried.add(fresh[-1].path.name)
            try:
                return fresh[-1].load(types=types, placeholders=placeholders)
            except Damaged as error:
                damage.append(error)
            except NotFound:
                continue
        if damage:
            raise damage[0]
        raise NotFound(f"{self.root}: no committed checkpoint")

    def pins(self) -> set[str]:
        """Names that no rule removes."""
        return {path.name for path in self.root.glob("pins/step-*")}

    def facts(self) -> list[retention.Facts]:
        """What retention goes by, of every checkpoint whose manifest is whole; oldest first."""
        return self._facts(self.checkpoints())[0]

    # -- writing -------------------------------------------------------------------------------------------------

    def claim(self) -> Attempt:
        """Become the run's owner, if this store is not yet.

        Raises:
            UsageError: another attempt lives, or may live.
        """
        if self.attempt is None:
            with _writing(self.root):
                self.attempt = attempts.claim(self.root, take_over=self._take_over)
        return self.attempt

    def close(self) -> None:
        """Give the run back: the next writer need not ask whether this one lives."""
        if self.attempt is not None:
            self.attempt.close("end", step=0)
            self.attempt = None

    def save(
        self,
        state: Any,
        *,
        step: int,
        metrics: Mapping[str, Any] | None = None,
        note: str | None = None,
        facts: Facts | None = None,
    ) -> Checkpoint:
        """Commit `state` as the checkpoint of `step`. When this returns, it survives a power loss.

        Then the rule `keep` is applied: an older checkpoint goes only after this one was read back from the medium.

        Raises:
            UsageError: that step is committed already, or the state holds something that cannot be encoded.
            NoSpace: it does not fit; the store is as it was.
            Superseded: a later attempt owns the run.
        """
        facts = facts or Facts(metrics=metrics or {}, note=note)
        name = _name(step, facts.phase)
        flat = tree.flatten(state)
        plan = shards.layout(flat.leaves)
        attempt = self.claim()
        need = sum(block.data.nbytes for block in flat.leaves.values()) + 512 * len(flat.leaves)
        self._require_space(need)

        def fill(partial: Path) -> Manifest:
            files, leaves = {}, {}
            for shard in plan:
                writing = shards.Writing(shard, flat.leaves)
                disk.write(partial / shard.name, writing.chunks())
                written = writing.written()
                files[shard.name] = written.file
                leaves.update(written.leaves)
            return self._manifest(name, facts, files, {key: leaves[key] for key in flat.leaves}, flat.tree)

        return self._commit(attempt, name, fill)

    @contextmanager
    def directory(
        self, *, step: int, metrics: Mapping[str, Any] | None = None, note: str | None = None
    ) -> Iterator[Path]:
        """Commit whatever files the block writes into the path it gets, as one atomic checkpoint.

            with store.directory(step=100) as path:
                torch.save(model, path / "model.pt")

        When the block raises, nothing was saved.
        """
        name, facts = _name(step, "step"), Facts(metrics=metrics or {}, note=note)
        attempt = self.claim()
        partial = self._begin(attempt, name)
        try:
            yield partial
        except BaseException:
            disk.remove_tree(partial)
            raise
        self._finish(attempt, name, partial, lambda path: self._manifest(name, facts, _sync_files(path), {}, None))

    def pin(self, step: int | str) -> None:
        """Keep that checkpoint for ever, whatever the rules say."""
        name = self[step].path.name
        with _writing(self.root):
            disk.make_dirs(self.root / "pins")
            if name not in self.pins():
                disk.write(self.root / "pins" / name, [])
                disk.sync_dir(self.root / "pins")

    def unpin(self, step: int | str) -> None:
        name = self[step].path.name
        with _writing(self.root):
            if name in self.pins():
                disk.remove_file(self.root / "pins" / name)
                disk.sync_dir(self.root / "pins")

    def prunable(self, rule: Rule) -> list[Checkpoint]:
        """What `prune` would remove, oldest first."""
        found = self.checkpoints()
        facts, damaged = self._facts(found)
        kept = retention.keep(facts, rule) if facts else set()
        return [c for c in found if c.path.name not in kept and c.path.name not in damaged]

    def prune(self, rule: Rule) -> list[Checkpoint]:
        """Remove what `rule` does not keep, after the newest that stays was read back whole from the medium.

        Pinned and damaged checkpoints stay; so does the newest valid one.

        Raises:
            Damaged: the newest is not whole on the medium; nothing was removed.
        """
        if self.attempt is None and not self.prunable(rule):
            return []
        attempt = self.claim()
        doomed = self.prunable(rule)  # looked up as the owner: before, another one might have been at work
        if not doomed:
            return []
        survivor = next(c for c in reversed(self.checkpoints()) if c.path.name not in {d.path.name for d in doomed})
        with attempt.acting("verify a checkpoint"):
            for problem in survivor.problems(cold=True):
                attempt.require()
                raise Damaged(f"{problem}; no older checkpoint was removed")
        removed = []
        with attempt.acting("prune"):
            for checkpoint in doomed:
                try:
                    attempts.discard(attempt, checkpoint.path)
                except FileNotFoundError:
                    if not attempt.room.is_dir():
                        raise
                    continue  # somebody removed it by hand
                removed.append(checkpoint)
        attempt.record("pruned", names=[c.path.name for c in removed])
        self._point()
        return removed

    def quarantine(self, checkpoint: Checkpoint, why: str) -> Path:
        """Move a checkpoint aside, never deleting it; `why` is a word or two that become part of its name."""
        attempt = self.claim()
        with attempt.acting("move a checkpoint to quarantine"):
            path = attempts.set_aside(attempt, checkpoint.path, why)
        self._point()
        return path

    @cached_property
    def _document(self) -> dict[str, Any]:
        return document()

    # -- the parts of a save ---------------------------------------------------------------------------------------

    def _commit(self, attempt: Attempt, name: Name, fill: Callable[[Path], Manifest]) -> Checkpoint:
        return self._finish(attempt, name, self._begin(attempt, name), fill)

    def _begin(self, attempt: Attempt, name: Name) -> Path:
        """An empty directory in the attempt's own room."""
        if attempts.is_checkpoint(self.root / "checkpoints" / str(name)):
            attempt.require()  # else it may be a successor's
            raise UsageError(f"{self.root}: {name} is already committed; checkpoints are immutable")
        partial = attempt.room / str(name)
        with attempt.acting("save"):
            disk.remove_tree(partial)
            disk.make_dir(partial)
        return partial

    def _finish(self, attempt: Attempt, name: Name, partial: Path, fill: Callable[[Path], Manifest]) -> Checkpoint:
        with attempt.acting("save"):
            try:
                data = format.encode(fill(partial))
                disk.write(partial / MANIFEST, [data])
                path = attempts.publish(attempt, partial, str(name))
            except (OSError, UsageError):
                attempts.clean_up(partial)
                raise
        self.parent = str(name)
        checkpoint = Checkpoint(path)
        self._point()
        if self.keep is not None:
            self.prune(self.keep)
        return checkpoint

    def _manifest(
        self, name: Name, facts: Facts, files: dict[str, format.File], leaves: dict[str, format.Leaf], body: Any
    ) -> Manifest:
        attempt = self.claim()
        best = next((rule for rule in parts(self.keep) if isinstance(rule, Best)), None) if self.keep else None
        return Manifest(
            step=name.step,
            phase=name.phase,
            epoch=facts.epoch,
            created=format.utc(time.time()),
            run=attempt.run,
            attempt=attempt.number,
            parent=self.parent,
            metrics=format.pack_metrics(facts.metrics),
            best={"metric": best.metric, "direction": best.direction.__name__} if best else None,
            note=facts.note,
            document=dict(facts.document or self._document),
            files=files,
            leaves=leaves,
            tree=body,
        )

    def _require_space(self, need: int) -> None:
        free = disk.free_bytes(self.root)
        if need + _SPARE_BYTES > free:
            raise NoSpace(
                f"{self.root}: the checkpoint needs {need:,} bytes and {free:,} are free; nothing was written. "
                "Free some space, or keep fewer checkpoints"
            )

    def _point(self) -> None:
        """Renew the links for people. They are not the truth: a failure is not one of the save's."""
        for link, find in (("latest", self.latest), ("best", self.best)):
            with suppress(OSError, Damaged):
                self._point_to(link, find)

    def _point_to(self, link: str, find: Callable[[], Checkpoint]) -> None:
        attempt = self.claim()
        try:
            attempts.point(attempt, link, find().path.name)
        except NotFound:
            attempts.unpoint(attempt, link)

    def _facts(self, checkpoints: list[Checkpoint]) -> tuple[list[retention.Facts], set[str]]:
        pins = self.pins()
        facts, damaged = [], set()
        for checkpoint in checkpoints:
            try:
                facts.append(checkpoint.facts(pinned=checkpoint.path.name in pins))
            except Damaged:
                damaged.add(checkpoint.path.name)
            except NotFound:
                continue
        return facts, damaged

    def _readable(self) -> list[Checkpoint]:
        """Those whose manifest is whole."""
        found = self.checkpoints()
        names = {facts.name for facts in self._facts(found)[0]}
        return [checkpoint for checkpoint in found if checkpoint.path.name in names]

    def _best_rule(self) -> Best:
        for rule in parts(self.keep) if self.keep is not None else ():
            if isinstance(rule, Best):
                return rule
        for checkpoint in reversed(self._readable()):
            found = checkpoint.manifest.best
            if found and found.get("direction") in ("max", "min"):
                return Best(found["metric"], max if found["direction"] == "max" else min)
        raise NotFound(f'{self.root}: nothing says which metric is best; save with keep=Best("metric", max)')

    def _names(self) -> list[Name]:
        """Names of what exists, in order. What went between the listing and the look makes it list again."""
        places = self.root / "checkpoints"
        for _ in range(_MOST_LOOKS):
            listed = _listed(places)
            found = [name for name in listed if attempts.is_checkpoint(places / str(name))]
            if found == listed or all(name in found or (places / str(name)).exists() for name in listed):
                break
        return found


@contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{root}: cannot write here: {error.strerror}") from error


def _listed(places: Path) -> list[Name]:
    names: list[Name] = []
    for _ in range(2):  # a listing is no instant: the only one may have made way for its successor meanwhile
        if places.is_dir() and not names:
            names = [name for name in map(format.parse_name, os.listdir(places)) if name]
    return sorted(names, key=lambda name: name.order)


def _name(step: int, phase: str) -> Name:
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**18:
        raise UsageError(f"a step is a whole number from 0, not {step!r}")
    return Name(step, phase)


def _sync_files(path: Path) -> dict[str, format.File]:
    """Make everything below `path` durable; the files' entries for the manifest."""
    files = {}
    for place, folders, names in os.walk(path):
        for name in itertools.chain(names, folders):
            inside = (Path(place) / name).relative_to(path).as_posix()
            if (Path(place) / name).is_symlink() or not format.is_inside(inside):
                raise UsageError(f"{inside}: a checkpoint holds plain files only, and its {MANIFEST} is Holdfast's")
        for name in sorted(names):
            disk.sync_file(Path(place) / name)
            files[(Path(place) / name).relative_to(path).as_posix()] = digest_file(Path(place) / name)
        disk.sync_dir(Path(place))
    return files
