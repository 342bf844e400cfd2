"""Hold: a file in a run's directory forbids requeueing."""

from __future__ import annotations

from pathlib import Path

HOLD = "hold"  # the file's name


def format_hold_message(place: Path) -> str:
    """Return the message for a command that somebody starts by hand in a directory on hold."""
    return (
        f"{place} is on hold: it runs until it stops, and is not started again; "
        f"{_release_command(place)}"
    )


def format_not_started(place: Path, again: str = "") -> str:
    """Return the message for a job that begins while its directory is on hold; `again`: the
    command that submits it.
    """
    go_on = f" && {again}" if again else ", then submit it again"
    return f"{place} is on hold, so it is not started: {_release_command(place)}{go_on}"


def _release_command(place: Path) -> str:
    import shlex

    return f"holdfast release {shlex.quote(str(place))}"
