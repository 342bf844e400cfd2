"""Hold: a file in a run's directory forbids requeueing."""

from __future__ import annotations

from pathlib import Path

HOLD = "hold"  # the file's name


def on_hold(place: Path) -> str:
    """Return the message for a command that starts in a directory on hold."""
    import shlex

    release = f"holdfast release {shlex.quote(str(place))}"
    return f"{place} is on hold: it runs until it stops, and is not started again; {release}"
