"""Versions of the installed libraries, compared with the lowest that Holdfast works with."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib import metadata

from .check import Check, ok, warning

OWN = ("msgspec", "xxhash", "click", "rich")


def check_versions() -> Iterator[Check]:
    """Check the versions; import nothing."""
    yield ok(
        "versions",
        f"holdfast {metadata.version('holdfast')}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.release()}",
    )
    for name, lowest in _required_versions().items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if _numbers(version) < _numbers(lowest):
            yield warning(
                name, f"{version} is older than {lowest}", f"pip install '{name}>={lowest}'"
            )
        elif name not in OWN:
            yield ok(name, version)


def _required_versions() -> dict[str, str]:
    """Return the lowest versions of extras and frameworks that the package requires."""
    found = {}
    for line in metadata.requires("holdfast") or []:
        match = re.match(r"([\w-]+)>=([\d.]+)", line)
        if match and "extra == 'dev'" not in line:
            found[match[1]] = match[2]
    return found


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.match(r"[\d.]*", version)[0].strip(".").split(".") if part]  # type: ignore[index]
