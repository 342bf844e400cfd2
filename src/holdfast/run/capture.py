"""StateCapture: what a checkpoint of this moment holds: the tracked state, the run's own memory,
facts for people.

RunMemory: the run's own part, checked before anything is restored. The file may be hostile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from ..errors import Damaged
from ..provenance import document
from ..ranks import Ranks
from ..state import rng
from ..state.tree import types_in
from ..state.validation import Count, convert_stored, is_plain, is_printable_number
from ..stateful import fingerprint
from ..stateful.objects import model_facts
from ..stateful.tracked import (
    RESERVED,
    CapturedState,
    StateDigests,
    Tracked,
    digest_state,
    prediction_mode,
)
from ..store import format
from ..store.checkpoint import NOT_EXACT_FROM, Checkpoint
from ..store.store import ManifestFields
from .metrics import MetricsLog
from .options import Options
from .origin import AttemptOrigin
from .position import AHEAD, Position, RunProgress

Random = dict[str, Any]  # states of generators, by package


class StateCapture(msgspec.Struct):
    """Captures the state of one attempt."""

    _options: Options
    tracked: Tracked
    _ranks: Ranks
    _origin: AttemptOrigin
    _progress: RunProgress
    _metrics: MetricsLog
    # what a clock says: saved with the run, and compared by no drill
    durations: dict[str, Any] = {}
    # the step from which on other samples than before are trained
    not_exact_from: int | None = None
    _document: dict[str, Any] = {}

    def mark_inexact_from(self, step: int | None) -> None:
        """Note that the run is not exact from `step` on. An earlier known step stays; None:
        it is exact.
        """
        known = [each for each in (self.not_exact_from, step) if each is not None]
        self.not_exact_from = min(known, default=None)

    def allowed_types(self) -> set[type]:
        """The caller's own types that a checkpoint of this run may name."""
        return {
            *self._options.types,
            *self.tracked.allowed_types(),
            *types_in(self.tracked.captured_variables()),
        }

    def digests(self, stored: Mapping[str, format.LeafEntry] | None = None) -> StateDigests:
        """Digests of the tracked objects and of the restored variables,
        as they are now; `stored`: see `digests`.
        """
        tracked, known = self.tracked, self._origin.memory["vars"]
        variables = {
            f"run.vars.{name}": value
            for name, value in tracked.captured_variables().items()
            if name in known
        }
        return digest_state(tracked.capture() | variables, stored, tracked.filled if stored else ())

    def capture_run_memory(self, *, probe: bool = True) -> dict[str, Any]:
        """The run's own state for a checkpoint. Random numbers are captured last."""
        progress, tracked, in_epoch = self._progress, self.tracked, self._progress.position.in_epoch
        return {
            "position": progress.state_dict(),
            "vars": tracked.captured_variables(),
            "seed": progress.seed,
            "overrides": {name: dict(changes) for name, changes in self._options.overrides.items()},
            "fingerprint": {
                "environment": fingerprint.describe_environment(),
                "loaders": progress.loader_facts,
            },
            "probe": self.call_probe() if probe else None,
            **({} if self._ranks.alone else {"reducers": tracked.reducer_orders()}),
            **({"nested": nested} if (nested := tracked.nested_paths()) else {}),
            **({"bound_anew": places} if (places := tracked.rebound_objects()) else {}),
            **({"means": means} if (means := self._metrics.means.state_dict()) else {}),
            **({"durations": self.durations} if self.durations else {}),
            "epoch_rng": progress.epoch_rng if in_epoch else None,
            **(
                {"epoch_generators": kept}
                if in_epoch and (kept := progress.epoch_generators)
                else {}
            ),
            "rng": rng.capture(),
        }

    def capture_state(self) -> CapturedState:
        """The complete state for a checkpoint."""
        state, weights = self.tracked.capture_with_weights()
        return CapturedState({**state, RESERVED: self.capture_run_memory()}, weights)

    def call_probe(self) -> Any:
        """Return the probe's result. Afterwards restore random numbers and training flags."""
        if self._options.probe is None:
            return None
        before = rng.capture()
        with prediction_mode(self.tracked.self_restoring_objects().values()):
            result = self._options.probe()
        rng.restore(before)
        return result

    def checkpoint_facts(self, metrics: Mapping[str, float], epoch: int | None) -> ManifestFields:
        """The facts in the manifest of a checkpoint made now.
        `epoch`: the one that just ended, at its end.
        """
        position = self._progress.position
        at = position.epoch if epoch is None else epoch
        return ManifestFields(
            position.phase, at, metrics, self._options.note, self._describe_origin()
        )

    def _describe_origin(self) -> dict[str, Any]:
        """Describe for people where this attempt came from; made once, by rank 0."""
        if not self._ranks.leads:
            return {}
        if not self._document:
            models = {
                name: facts
                for name, target in self.tracked.self_restoring_objects().items()
                if (facts := model_facts(target))
            }
            made = document(self._options.hyperparameters, self._options.dataset)
            self._document = {**made, "model": models}
        since = self.not_exact_from
        return self._document if since is None else {**self._document, NOT_EXACT_FROM: since}


class Fingerprint(msgspec.Struct, forbid_unknown_fields=True):
    environment: dict[str, Any]
    loaders: dict[str, dict[str, Any]]


class RunMemory(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of `StateCapture.capture_run_memory` whose types do not depend on the script.

    A new one raises `VERSION`.
    """

    position: dict[str, Any]
    vars: dict[str, Any]
    seed: int
    overrides: dict[str, dict[str, Any]]
    fingerprint: Fingerprint
    probe: Any
    rng: Random
    epoch_rng: Random | None
    epoch_generators: dict[str, Any] = {}
    reducers: dict[str, tuple[list[Count], Annotated[int, msgspec.Meta(ge=0, le=2)]]] = {}
    nested: list[str] = []
    bound_anew: list[str] = []
    means: dict[
        str, dict[str, Annotated[list[float], msgspec.Meta(min_length=2, max_length=2)]]
    ] = {}
    durations: dict[str, Any] = {}


# here, where only one thread is: the first use of a type by two can crash msgspec
msgspec.json.Decoder(RunMemory)


def validate_run_memory(stored: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return `stored`, the run's own part of `checkpoint`, after checking its fields.

    Raises:
        Damaged: no version of a run could have saved it.
    """
    if not isinstance(stored, dict):
        raise Damaged(f"{checkpoint.path}: what the run remembered is not a mapping")
    memory = convert_stored(RunMemory, stored, f"{checkpoint.path}: what the run remembered")
    position = Position.from_stored(memory.position)
    if (position.step, position.phase) != (checkpoint.step, checkpoint.phase):
        raise Damaged(
            f"{checkpoint.path}: the run's position in it "
            f"is step {position.step}, {position.phase!r}"
        )
    if not is_printable_number(memory.seed):
        raise Damaged(f"{checkpoint.path}: no run has a seed of so many digits")
    for what in (memory.fingerprint.environment, memory.fingerprint.loaders, memory.overrides):
        if not is_plain(what):
            raise Damaged(
                f"{checkpoint.path}: the run remembered facts that are neither text nor numbers"
            )
    rng.require_valid(_random_states(memory, position))
    return stored


def _random_states(memory: RunMemory, position: Position) -> Iterator[Mapping[str, Any]]:
    """Yield the states of random generators in the run's own part."""
    yield memory.rng
    yield memory.epoch_rng or {}
    for feed in position.feeds.values():
        yield feed.get("rng", {})
        yield feed.get("last_rng", {})
        yield from feed.get(AHEAD, [])
