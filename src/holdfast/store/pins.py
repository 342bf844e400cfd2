"""Pins: pinned checkpoints, which no rule removes. Each has files of its own."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from .. import disk, scan
from ..errors import Damaged, UsageError
from . import shards, symlinks
from .checkpoint import Checkpoint
from .lineage import LinkedShard
from .shards import StaleLink

_STALE_S = 3600.0  # a copy of a pinned file older than this was left by a process that died


def pinned_names(root: Path) -> set[str]:
    """Return the names of checkpoints pinned in the run at `root`. Some of them may no longer
    exist.
    """
    return {path.name for path in scan.glob(root, "pins/step-*")}


def pin(root: Path, checkpoint: Checkpoint) -> None:
    """Make the pin durable, then give the checkpoint files of its own.

    Raises:
        UsageError: the checkpoint, or `pins`, is a symbolic link.
        Damaged: one of its files differs from what was committed; the checkpoint is pinned
            nevertheless.
    """
    pins = root / "pins"
    symlinks.require_safe_links(root)
    if scan.is_symlink(checkpoint.path):
        raise UsageError(
            f"{checkpoint.path} is a symbolic link to {os.readlink(checkpoint.path)}: "
            "its files lie in another run; "
            "pin it there, or copy it here with cp -rL in the link's place"
        )
    disk.make_dirs(pins)
    if checkpoint.path.name not in pinned_names(root):
        disk.write(pins / checkpoint.path.name, [])
        disk.sync_dir(pins)
    _copy_shared_files(pins, checkpoint)


def unpin(root: Path, name: str) -> None:
    symlinks.require_safe_links(root)
    if name in pinned_names(root):
        disk.remove_file(root / "pins" / name)
        disk.sync_dir(root / "pins")


def _copy_shared_files(pins: Path, checkpoint: Checkpoint) -> None:
    """Give the checkpoint its own copies of the files that it shares with other checkpoints."""
    manifest = checkpoint.manifest
    for left in scan.glob(pins, ".*.part"):
        if time.time() - left.lstat().st_mtime > _STALE_S:
            disk.remove_tree(left)
    for name, file in manifest.files.items():
        path, part = checkpoint.path / name, pins / f".{uuid.uuid4().hex}.part"
        leaves = {key: leaf for key, leaf in manifest.leaves.items() if leaf.shard == name}
        if not leaves or os.lstat(path).st_nlink == 1:
            continue
        try:
            shards.copy_file(path, part, LinkedShard(name, path, file, leaves))
            disk.replace(part, path)
        except StaleLink as error:
            raise Damaged(f"{path}: changed since commit") from error
        finally:
            disk.remove_tree(part)
        disk.sync_dir(checkpoint.path)
