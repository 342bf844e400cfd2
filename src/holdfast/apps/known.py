"""Known apps: the adapter for the word after `--app`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import UsageError
from .command import AnyCommand
from .criu import Criu
from .dmtcp import Dmtcp
from .file import AppFile, read
from .gromacs import Gromacs
from .lammps import Lammps
from .program import Program

# Each takes the program's working directory, and a directory for what must outlive one start.
APPS: Mapping[str, Callable[[Path, Path], Program]] = {
    "gromacs": Gromacs,
    "lammps": Lammps,
    "dmtcp": Dmtcp,
    "criu": Criu,
}


def adapter_for(app: str | None, work: Path, room: Path) -> Program:
    """Return the adapter for `app`, a name or an app file; without `app`, the one for any command.

    `work` is the directory in which the program runs; in `room` only the adapter writes.

    Raises:
        UsageError: there is no such app, or its file has a mistake.
    """
    if app is None:
        return AnyCommand()
    if app in APPS:
        return APPS[app](work, room)
    if is_file(app):
        return AppFile(read(Path(app)), work, room)
    raise UsageError(
        f"--app {app}: not known; say {', '.join(APPS)}, "
        "or name a file that ends in .toml (docs/apps.md)"
    )


def is_file(app: str | None) -> bool:
    """Whether `app` is an app file, which may define the whole command."""
    return app is not None and app.endswith(".toml")
