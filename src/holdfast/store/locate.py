"""Locate: resolve a command's RUN argument: a run's directory,
its `checkpoints`, one checkpoint, or a copy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from .. import retention, scan
from ..errors import Damaged, NotFound, StoreError, UsageError
from . import source
from .attempt import is_checkpoint
from .checkpoint import Checkpoint
from .checkpoint_index import committed_names, may_be_committed
from .format import MANIFEST, parse_name

Step = int | str | None  # a number, "best", "latest" or a checkpoint's name; None: the newest
T = TypeVar("T")

_ROUNDS = 5  # tries to list again when a listed checkpoint was removed before it was read


class Location(NamedTuple):
    """Where checkpoints are. Nothing is cached: each call reads the directory again."""

    path: Path
    root: Path | None  # the run's directory, if there is one
    single: bool  # whether `path` is one checkpoint

    def checkpoints(self) -> list[Checkpoint]:
        """Checkpoints that are committed there now, oldest first; unreadable ones, too."""
        if self.single:
            return [Checkpoint(self.path)]
        folder = self.path if self.root is None else self.root / "checkpoints"
        return [
            Checkpoint(folder / str(name)) for name in committed_names(folder, may_be_committed)
        ]

    def readable(self) -> list[Checkpoint]:
        """Checkpoints with a valid manifest; `verify` and `ls` report the others."""
        return [
            checkpoint for checkpoint in self.checkpoints() if unreadable_reason(checkpoint) is None
        ]

    def select(self, step: Step = None) -> Checkpoint:
        """Return the newest checkpoint, a step's (the end of its epoch if both exist), or the best;
        with its manifest.

        Raises:
            NotFound: there is no such checkpoint.
            Damaged: its manifest differs from what was committed.
            Unreadable: its manifest cannot be read now.
        """

        def find() -> Checkpoint:
            chosen = self._choose(step)
            with source.translate_read_errors(chosen.path):
                # the manifest itself has that; the parts of several ranks are read on demand
                _ = chosen.tree
            return chosen

        return retry_if_removed(find)

    def best(self) -> Checkpoint:
        """Return the checkpoint that ranks first by the rule in the newest manifest that has one;
        of equals the oldest.

        Raises:
            NotFound: there is no rule, or no checkpoint has that metric.
        """
        found = best_of(self.readable())
        if found is None:
            raise NotFound(
                f"{self.path}: nothing says which checkpoint is best; "
                'save with keep=Best("metric", max)'
            )
        return found

    def _choose(self, step: Step) -> Checkpoint:
        if step == "best":
            return self.best()
        found = self.checkpoints()
        wanted = (
            found
            if step in (None, "latest")
            else [c for c in found if step in _names(c, single=self.single)]
        )
        if not wanted:
            have = ", ".join(str(c.path.name) for c in found[-5:])
            what = (
                "no committed checkpoint"
                if not found
                else f"no checkpoint of step {step}; the newest are: {have}"
            )
            raise NotFound(f"{self.path}: {what}")
        return wanted[-1]


def best_of(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the best of these readable checkpoints, which are given oldest first."""
    rule = next((c.head.best_rule for c in reversed(checkpoints) if c.head.best_rule), None)
    by_name = {c.path.name: c for c in checkpoints}  # a copy may have any name
    facts = [c.facts()._replace(name=name) for name, c in by_name.items()]
    ranked = retention.rank_by_metric(rule, facts) if rule else []
    return by_name[ranked[0].name] if ranked else None


def locate(path: str | os.PathLike[str]) -> Location:
    """Find out what is at `path`.

    Raises:
        NotFound: there is nothing, or nothing that Holdfast wrote.
    """
    place = Path(path)
    if not scan.is_dir(place):
        what = "not a directory" if scan.lexists(place) else "no such file or directory"
        raise NotFound(f"{path}: {what}; expected a run's directory, or a checkpoint's")
    if _is_holdfast_manifest(place / MANIFEST):
        return Location(place, _run_around(place.absolute().parent), single=True)
    if _is_run(place):
        return Location(place, place, single=False)
    if _run_around(place.absolute()) is not None or any(
        is_checkpoint(place / entry) for entry in scan.names(place)
    ):
        return Location(place, _run_around(place.absolute()), single=False)
    raise NotFound(
        f"{path}: neither a run's directory nor a checkpoint's: "
        f"no checkpoints/ and no {MANIFEST} of Holdfast's"
    )


def require_run(path: Path) -> None:
    """Require the path of a run's directory, or of a new one.

    Raises:
        UsageError: `path` is not a run's directory but a checkpoint, the `checkpoints` directory of
            a run, or a mirror.
    """
    place = path.resolve()
    if is_mirror(place):
        raise UsageError(
            f"{path} is a mirror, which holds copies of a run: "
            f"start with mirror=[{str(path)!r}] in another directory, "
            f"or make one with holdfast copy {path} DIRECTORY"
        )
    if _is_holdfast_manifest(place / MANIFEST):
        run = _run_around(place.parent)
        around = f", {run}," if run else ""
        raise UsageError(
            f"{path} is a checkpoint: give its run's directory{around} "
            f"or read it with Checkpoint({str(path)!r})"
        )
    if run := _run_around(place):
        raise UsageError(f"{path} holds a run's checkpoints: give the run's directory, {run}")


def is_mirror(path: Path) -> bool:
    """Whether `path` is a folder with copies of a run,
    as `mirror=` makes them, and no run's directory.
    """
    return scan.is_dir(path / "claims") and not scan.exists(path / "attempts")


def parse_step(text: str) -> int | str:
    """Parse a step as users write it: a number, `best`, `latest`, or a checkpoint's name.

    Raises:
        UsageError: it is none of these.
    """
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    if text in ("best", "latest") or parse_name(text) is not None:
        return text
    raise UsageError(
        f"{text!r} is no step: write a number, best, latest, or a name such as step-000001200-end"
    )


def run_directory_of(place: Location) -> Path:
    """Return the directory of the run that contains `place`, for commands that change something
    there.

    Raises:
        UsageError: there is none, because `place` is a copy of checkpoints only, or a mirror.
    """
    if place.root is not None:
        require_run(place.root)
    if place.root is None:
        raise UsageError(
            f"{place.path}: not in a run's directory; "
            "only a run's own checkpoints can be pinned or pruned"
        )
    return place.root


def unreadable_reason(checkpoint: Checkpoint) -> str | None:
    """Return why its manifest cannot be read;
    None if it can be read, "gone" if the checkpoint was removed.
    """
    try:
        _ = checkpoint.head
    except NotFound:
        return "gone"
    except Damaged as error:
        return f"damaged: {error}"
    except StoreError as error:
        return f"unreadable: {error}"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def retry_if_removed(look: Callable[[], T]) -> T:
    """Return the result of `look`; call it again if a checkpoint was removed between listing and
    reading.
    """
    for _ in range(_ROUNDS - 1):
        try:
            return look()
        except (NotFound, FileNotFoundError):
            continue
    return look()


def _names(checkpoint: Checkpoint, *, single: bool) -> tuple[int | str, ...]:
    name = parse_name(checkpoint.path.name)
    if single or name is None:  # a copy may have any name
        name = checkpoint.head.name
    return name.step, str(name)


def _is_run(path: Path) -> bool:
    """Return whether `path` is a run. A copied run may lack journals, a new one checkpoints; other
    programs use such names, too.
    """
    inside = path / "checkpoints"
    began = scan.is_file(path / "run.json") and (
        scan.is_dir(path / "attempts") or scan.is_dir(inside)
    )
    return began or any(is_checkpoint(inside / entry) for entry in scan.names(inside))


def _run_around(folder: Path) -> Path | None:
    """Return the run whose `checkpoints` directory is `folder`."""
    return folder.parent if folder.name == "checkpoints" and _is_run(folder.parent) else None


def _is_holdfast_manifest(manifest: Path) -> bool:
    """Return whether `manifest` is a checkpoint's manifest, perhaps a damaged one; other programs
    have files of that name.
    """
    if not scan.is_file(manifest):
        return False
    if parse_name(manifest.parent.name) is not None:
        return True
    with source.name_file_in_errors(manifest), open(manifest, "rb") as file:
        return b"holdfast" in file.read(1 << 12)
