"""Defaults: options in `holdfast.toml` or `pyproject.toml` that replace the command line's
defaults.

    [submit]                      # [tool.holdfast.submit] in pyproject.toml
    lead = 300
    setup = ["module load anaconda/3", "conda activate pytorch"]

    [submit.sbatch]               # whatever sbatch takes
    partition = "long"
    time = "12:00:00"

Only the folder from which a command is called is searched: a file further up may be another user's,
and could run code.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from .. import scan
from ..errors import UsageError

# the first file with such a table is used
FILES = {"holdfast.toml": (), "pyproject.toml": ("tool", "holdfast")}


def read_defaults(command: str, known: Sequence[str]) -> dict[str, Any]:
    """Return what the file sets for this command: parameter name -> its new default.

    Raises:
        UsageError: the file is not valid TOML, or names an option that the command does not have.
    """
    for file, path in FILES.items():
        table = _table(file, (*path, command))
        if table is None:
            continue
        found = {name.replace("-", "_"): value for name, value in table.items()}
        strange = sorted(set(found) - set(known))
        if strange:
            options = ", ".join(sorted(name.replace("_", "-") for name in known))
            raise UsageError(
                f"{file}: holdfast {command} has no option {strange[0]}; it has {options}"
            )
        return found
    return {}


def _table(file: str, path: Sequence[str]) -> Mapping[str, Any] | None:
    if not scan.is_file(file):
        return None
    try:
        with open(file, "rb") as text:
            table: Any = tomllib.load(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}") from error
    for name in path:
        table = table.get(name) if isinstance(table, Mapping) else None
    if table is not None and not isinstance(table, Mapping):
        raise UsageError(f"{file}: {'.'.join(path)} is no table")
    return table
