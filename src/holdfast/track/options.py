"""Options: which trackers get the metrics of a run, as the caller names them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Annotated, Literal

import msgspec

from ..errors import UsageError
from ..legible import printable
from ..provenance import redact

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class WandB(msgspec.Struct, frozen=True, tag=True):
    """Weights & Biases. The API key comes from the environment or `wandb login`.

    Args:
        project: W&B's project.
        name: of the run there; by default the name of the run's directory.
        entity: the user or team; by default the one of the API key.
        mode: "online" or "offline"; by default what WANDB_MODE says.
    """

    project: _Text
    name: str | None = None
    entity: str | None = None
    mode: Literal["online", "offline"] | None = None

    @property
    def package(self) -> str:
        return "wandb"

    @property
    def place(self) -> str:
        """Where the run stands, without secrets."""
        return "/".join(filter(None, (self.entity, self.project)))

    def __str__(self) -> str:
        return f"W&B {self.place}"


class MLflow(msgspec.Struct, frozen=True, tag=True):
    """MLflow.

    Args:
        experiment: created there if it doesn't exist.
        tracking_uri: a server's address, or "sqlite:///mlflow.db"; by default what
            MLFLOW_TRACKING_URI says.
        name: of the run there; by default the name of the run's directory.
    """

    experiment: _Text
    tracking_uri: str | None = None
    name: str | None = None

    @property
    def package(self) -> str:
        return "mlflow"

    @property
    def place(self) -> str:
        """Where the run stands, without secrets."""
        # the query of an address may hold a token
        uri = redact([(self.tracking_uri or "").partition("?")[0]])[0]
        return f"{uri} {self.experiment}".strip()

    def __str__(self) -> str:
        return f"MLflow {self.place}"


TrackerOptions = WandB | MLflow
msgspec.json.Decoder(TrackerOptions)  # made here, where only one thread is


def file_name(tracker: TrackerOptions) -> str:
    """Return the name of the tracker's files, from its options without secrets."""
    text = f"{tracker.place}\n{tracker.name or ''}"
    return f"{tracker.package}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def parse_trackers(given: object) -> tuple[TrackerOptions, ...]:
    """Return the trackers of `Run(track=...)`.

    Raises:
        UsageError: one is no tracker, is given twice, has an option of another type, or its package
            is not installed.
    """
    found: tuple[object, ...] = (
        tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    )
    trackers = tuple(map(_checked, found))
    if len({*map(file_name, trackers)}) < len(trackers):
        raise UsageError("track: a tracker is given twice; give them different names")
    return trackers


def _checked(tracker: object) -> TrackerOptions:
    if not isinstance(tracker, TrackerOptions):
        raise UsageError(
            f'track={printable(repr(tracker))}: give trackers, as in track=[WandB("digits")]'
        )
    kind = type(tracker).__name__
    try:
        msgspec.convert(msgspec.to_builtins(tracker), type(tracker))
    except (msgspec.ValidationError, TypeError) as error:
        raise UsageError(f"track: {kind}: {error}") from None
    if find_spec(tracker.package) is None:
        raise UsageError(
            f"track: {kind} needs a package that is not installed: "
            f'pip install "holdfast[{tracker.package}]"'
        )
    return tracker
