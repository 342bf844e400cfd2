"""Settings: environment variables that a run reads.
A drill controls a run by two of them and in no other way.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from .errors import UsageError
from .ranks import TIMEOUT_S

RUN_DIR = "HOLDFAST_RUN_DIR"
DRILL = "HOLDFAST_DRILL"
MAX_REQUEUES = "HOLDFAST_MAX_REQUEUES"
MOST_REQUEUES = 1000  # of one job, unless the variable says otherwise
RANKS_TIMEOUT_S = "HOLDFAST_RANKS_TIMEOUT_S"
PURGE_DAYS = "HOLDFAST_PURGE_DAYS"
ARGUMENTS = "arguments"  # in `accept`: a batch job may have other arguments than the last one


SafePoint = tuple[int, str]  # step and phase


class DrillTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place from which a drill wants the run to resume, and what the attempt before must
    do for that.
    """

    place: SafePoint
    saves: tuple[SafePoint, ...] = ()  # save here, instead of at the run's own interval
    exact: bool = False  # make the save at the place durable before the run continues
    hold: SafePoint | None = None  # where the run waits for a signal, and then stops
    brink: SafePoint | None = None  # the last place at which the run waits to be killed


class DrillSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a drill requires of a run, read from the environment."""

    steps: int | None = None  # stop after this many
    # instead of the run's own interval; with aims: until the place is reached
    save_every_steps: int | None = None
    digests: bool = False  # journal the state's digests at every safe point
    marks: bool = False  # write a mark to standard output at every safe point
    aims: tuple[DrillTarget, ...] = ()  # in the order of the run
    # the file that takes a line for each file opened that another run of the drill wrote
    opened: str | None = None
    since_ns: tuple[int, int] = (0, 0)  # when the drill, and this run of it, began


_DRILLED = msgspec.json.Decoder(DrillSettings)  # made here for the reason that `format` has
# a value of HOLDFAST_RUN_DIR -> the paths of the runs that it moves, numbered
_moved: dict[str, dict[str, int]] = {}
# and the number of a further run of the script, in a directory beside the first one's
BESIDE = ".run-"


def run_dir(path: str | os.PathLike[str]) -> Path:
    """The run's directory: `path`, unless HOLDFAST_RUN_DIR is set. Absolute, because a script may
    change its directory.

    HOLDFAST_RUN_DIR is the directory of the script's first run. Further ones lie beside it.
    """
    place = os.environ.get(RUN_DIR)
    if not place:
        return Path(path).absolute()
    numbers = _moved.setdefault(place, {})
    number = numbers.setdefault(os.fspath(path), len(numbers))
    return Path(place).absolute() if not number else Path(f"{place}{BESIDE}{number + 1}").absolute()


def named_run_dir(path: Path) -> Path:
    """Return the directory that the script names for the run at `path`, also where
    HOLDFAST_RUN_DIR has moved it.
    """
    named = _moved.get(os.environ.get(RUN_DIR, ""), {})
    return Path(next((own for own in named if run_dir(own) == path), path)).absolute()


def is_drilled() -> bool:
    """Whether a drill runs this process: then the drill kills it, not a scheduler."""
    return bool(os.environ.get(DRILL))


def max_requeues() -> int:
    """How often a run may requeue its own job, over all its attempts."""
    text = os.environ.get(MAX_REQUEUES, "")
    return int(text) if text.isdecimal() else MOST_REQUEUES


def ranks_timeout_s() -> float:
    """How long to wait for another rank of the run.

    Raises:
        UsageError: the value is not a number of seconds.
    """
    text = os.environ.get(RANKS_TIMEOUT_S)
    try:
        seconds = TIMEOUT_S if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{RANKS_TIMEOUT_S}={text}: a number of seconds above 0 is wanted")
    return seconds


def purge_days() -> float | None:
    """Return after how many days this site deletes files; None: it does not, or the user has not
    said so.

    Raises:
        UsageError: the value is no number of days.
    """
    text = os.environ.get(PURGE_DAYS)
    if not text:
        return None
    with suppress(ValueError):
        if 0 < (days := float(text)) < float("inf"):
            return days
    raise UsageError(f"{PURGE_DAYS}={text}: a number of days above 0 is wanted")


def read_drill_settings(path: Path | None = None) -> DrillSettings:
    """Read the settings in HOLDFAST_DRILL; return empty ones when it is unset.

    `path`: of the run. Only the script's first run is stopped and resumed by them.

    Raises:
        UsageError: a drill did not write the value.
    """
    text, first = os.environ.get(DRILL), os.environ.get(RUN_DIR)
    if not text or (path is not None and first and path != Path(first).absolute()):
        return DrillSettings()
    try:
        return _DRILLED.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(f"{DRILL} is set, but not by `holdfast drill`: {error}") from error
