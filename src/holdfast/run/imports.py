"""Imports: tells a supervisor with `--standby` which modules the script has imported."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import xxhash

from .. import disk, legible

ASKED = "HOLDFAST_IMPORTS"  # the file that the supervisor reads


def tell() -> None:
    """Write the list, if a supervisor wants it. A file that cannot be written is no error: there is then no standby."""
    place = os.environ.get(ASKED)
    if place:
        with suppress(OSError):
            disk.replace_with(Path(place), [legible.json_bytes(_imported()) + b"\n"])


def _imported() -> dict[str, object]:
    """Return the modules in the order of their import, each with its file; the folder; a digest of the environment."""
    modules = []
    for name, module in [*sys.modules.items()]:
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        if spec is not None and spec.name == name and getattr(spec, "has_location", False) and isinstance(origin, str):
            modules.append([name, origin])
    pairs = sorted(f"{name}={value}" for name, value in os.environ.items())
    digest = xxhash.xxh3_128_hexdigest(os.fsencode("\0".join(pairs)))
    return {
        "pid": os.getpid(),
        "cwd": os.getcwd(),
        "modules": modules,
        "names": sorted(os.environ),
        "environment": digest,
    }
