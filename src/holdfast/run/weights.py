"""Weights of models alone, read from a checkpoint for a new run or for inference."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from .. import scan
from ..errors import Damaged, Mismatch, NotFound, UsageError
from ..legible import counted
from ..stateful.objects import stored_state_at, weight_reader_for
from ..store.checkpoint import Checkpoint
from ..store.checkpoint_index import CheckpointIndex
from ..store.format import MANIFEST
from ..store.signing import Key, public_key
from ..store.store import Store
from .failures import require_sound, translate_read_errors

T = TypeVar("T")


class Report(NamedTuple):
    """Which parts of a model were read and which were not. Keys as in the model."""

    loaded: list[str]
    missing: list[str]  # in the model, not in the checkpoint: left as they were
    unexpected: list[str]  # in the checkpoint, not in the model
    mismatched: list[str]  # in both, of another shape or dtype: left as they were

    @property
    def complete(self) -> bool:
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        lines = [f"{counted(len(self.loaded), 'tensor')} read"]
        for what in ("missing", "unexpected", "mismatched"):
            names = getattr(self, what)
            if names:
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                lines.append(f"{len(names)} {what}: {', '.join(names[:5])}{more}")
        return "; ".join(lines)


class StartFrom(msgspec.Struct, frozen=True):
    """Where a new run takes weights from: a run's directory or a checkpoint's.

    `names`: which tracked objects (default: every model). `rename`: prefix in the checkpoint ->
    prefix here. With `strict=False` mismatches are reported and left unchanged.
    """

    path: str | os.PathLike[str]
    names: tuple[str, ...] | str = ()
    rename: Mapping[str, str] = {}
    strict: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.names, str):
            msgspec.structs.force_setattr(self, "names", (self.names,))


def load_into(
    model: Any,
    path: str | os.PathLike[str],
    name: str = "model",
    *,
    rename: Mapping[str, str] | None = None,
    strict: bool = True,
    step: int | str | None = None,
    key: str | os.PathLike[str] | None = None,
) -> Report:
    """Read the weights that were tracked as `name` into `model`, straight into its memory, checked
    on the way.

    `path` is a run's directory (its newest checkpoint, or `step`, or "best") or a checkpoint's. A
    damaged newest one is reported and skipped: then everything is read from an older one. `key`: a
    file with a public key, as `holdfast verify --key` takes it. The checkpoint must be signed by
    it.

    Raises:
        Mismatch: a leaf is missing, unexpected or of another shape, and `strict`; nothing was
            overwritten.
        NotFound: no such checkpoint; nothing was overwritten.
        Untrusted: the key did not sign the checkpoint; no older one was tried.
        Damaged: no suitable checkpoint is undamaged. The message reports when the model contains a
            part of one.
        Unreadable: a file cannot be read now. The model may contain a part of the checkpoint: call
            this again.
    """
    if weight_reader_for(model) is None:
        raise UsageError(
            f"load_into(model, path): the model is a {type(model).__qualname__}; "
            "give a torch module, a Keras model, or a JAX tree"
        )

    def wanted(checkpoint: Checkpoint) -> dict[str, Any]:
        stored = checkpoint.parts()
        if stored and name.partition("/")[0] not in stored:
            known = checkpoint.models() or stored
            raise NotFound(
                f"{checkpoint.path}: holds no {name!r}, "
                f"only {', '.join(known)}; say name={known[0]!r}"
            )
        return {name: model}

    reader = _WeightReader(wanted, rename or {}, strict, None if key is None else public_key(key))
    with translate_read_errors(Path(path)):
        return reader.read(path, step)[name]


def read_initial_weights(source: StartFrom, objects: Mapping[str, Any]) -> dict[str, Report]:
    """Read the weights of `source`, of one checkpoint,
    into the models among `objects`; return reports by name.
    """
    models = {name: target for name, target in objects.items() if weight_reader_for(target)}
    unknown = [name for name in source.names if name not in models]
    if unknown:
        raise UsageError(
            f"start_from: no tracked model is called {unknown[0]!r}; there are: {', '.join(models)}"
        )

    elsewhere = _read_foreign_weights(source, models)
    if elsewhere:
        return elsewhere

    def wanted(checkpoint: Checkpoint) -> dict[str, Any]:
        stored = checkpoint.parts()
        names = source.names or [
            name for name in models if name in stored or name.partition("/")[0] in stored
        ]
        if not names:
            has = f"holds none of {', '.join(models) or 'no models'}, only {', '.join(stored)}"
            raise Mismatch(f"{checkpoint.path}: {has}")
        return {name: models[name] for name in names}

    return _WeightReader(wanted, source.rename, source.strict).read(source.path)


def _read_foreign_weights(source: StartFrom, models: Mapping[str, Any]) -> dict[str, Report]:
    """Read from a checkpoint of another library,
    if `source` is one that a model's framework knows.
    """
    found: dict[str, Any] = {}
    for name in source.names or models:
        foreign = getattr(weight_reader_for(models[name]), "read_foreign", None)
        stored = None if foreign is None else foreign(Path(source.path), name)
        if stored is not None:
            found[name] = stored
    reports = {
        name: weight_reader_for(models[name]).match_weights(
            models[name], found[name], source.rename
        )
        for name in found
    }
    for report in reports.values():
        if source.strict and not report.complete:
            raise Mismatch(f"{source.path}: {report}; strict=False reads what fits")
    for name, stored in found.items():
        weight_reader_for(models[name]).read_matching(models[name], stored, source.rename)
    return reports


def open_checkpoint(path: str | os.PathLike[str], step: int | str | None = None) -> Checkpoint:
    """The checkpoint that `path` refers to: itself, that of `step`,
    or the newest of its run whose layout is valid.
    """
    return _read_from(path, step, _require_valid_layout)


class _WeightReader(msgspec.Struct):
    """Reads weights of one checkpoint into live models.

    If it turns out damaged halfway, an older one replaces it. That one is checked completely first,
    and must contain all that was overwritten: the models never end with parts of both.
    """

    _models: Callable[[Checkpoint], Mapping[str, Any]]
    _rename: Mapping[str, str]
    _strict: bool
    _key: Key | None = None
    _begun: dict[str, Report] = {}  # names that a damaged checkpoint may have overwritten

    def read(
        self, path: str | os.PathLike[str], step: int | str | None = None
    ) -> dict[str, Report]:
        try:
            return _read_from(path, step, self._read)
        except Damaged as error:
            if not self._begun:
                raise
            raise Damaged(
                f"{error}; {', '.join(self._begun)} may hold a part of it: "
                "build anew what is to be used"
            ) from error

    def _read(self, named: Checkpoint) -> dict[str, Report]:
        checkpoint = _require_valid_layout(named.signed_by(self._key))
        try:
            models = self._models(checkpoint)
            stored = {name: stored_state_at(checkpoint, name) for name in models}
            reports = self._compare_all(models, stored, checkpoint)
        except (Mismatch, NotFound) as error:
            if self._begun:
                raise Damaged(f"{error}; it cannot make up for a damaged one") from error
            raise
        if self._begun:
            self._require_substitute(checkpoint, reports)
        self._begun = reports
        for name, model in models.items():
            weight_reader_for(model).read_matching(model, stored[name], self._rename)
        return reports

    def _compare_all(
        self, models: Mapping[str, Any], stored: Mapping[str, Any], checkpoint: Checkpoint
    ) -> dict[str, Report]:
        """Compare all models before anything is overwritten."""
        reports = {}
        for name, model in models.items():
            report = weight_reader_for(model).match_weights(model, stored[name], self._rename)
            reports[name] = report
            if self._strict and not report.complete:
                raise Mismatch(f"{checkpoint.path}: {report}; strict=False reads what fits")
        return reports

    def _require_substitute(self, checkpoint: Checkpoint, reports: Mapping[str, Report]) -> None:
        for name, begun in self._begun.items():
            if name not in reports or not {*begun.loaded} <= {*reports[name].loaded}:
                raise Damaged(
                    f"{checkpoint.path}: lacks something of {name}; "
                    "it cannot make up for a damaged one"
                )
        require_sound(checkpoint)


def _require_valid_layout(checkpoint: Checkpoint) -> Checkpoint:
    checkpoint.check_layout()
    return checkpoint


def _read_from(
    path: str | os.PathLike[str], step: int | str | None, read: Callable[[Checkpoint], T]
) -> T:
    """Return the result of `read` for the checkpoint at `path`: itself, that of `step`, or the
    newest undamaged one.
    """
    where = Path(path)
    if scan.exists(where / MANIFEST):
        return read(Checkpoint(where))
    if step is not None:
        store = Store(where)
        return read(store.best() if step == "best" else store[step])
    index = CheckpointIndex(where.absolute())
    if not index.names():
        raise NotFound(f"{where}: neither a checkpoint nor a run with one")
    return index.read_newest(read)


def match_by_name(
    live: Mapping[str, Any], stored: Mapping[str, Any], differs: Callable[[str], object]
) -> Report:
    """Return which leaves of `stored` fit the live ones of the same name. `differs`: whether those
    of that name have another shape or dtype.
    """
    both = [name for name in live if name in stored]
    mismatched = [name for name in both if differs(name)]
    return Report(
        loaded=[name for name in both if name not in mismatched],
        missing=[name for name in live if name not in stored],
        unexpected=[name for name in stored if name not in live],
        mismatched=mismatched,
    )


def rename_leaf(name: str, rename: Mapping[str, str]) -> str:
    """Return a leaf's name as the model here has it.

    `rename`: prefix in the checkpoint -> prefix here, whole parts of a name; the longest that fits
    counts.
    """
    for old in sorted(rename, key=len, reverse=True):
        stem = old.rstrip(".")
        if not stem or name == stem or name.startswith(f"{stem}."):
            return f"{rename[old].rstrip('.')}.{name[len(stem) :].lstrip('.')}".strip(".")
    return name
