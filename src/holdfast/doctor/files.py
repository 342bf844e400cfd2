"""Files: checks by trial whether the file system under a directory supports each operation that
a store needs.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .. import disk, scan
from ..cluster.quota import quotas
from ..errors import ClusterError
from ..legible import size
from .check import Check, ok, problem, warning

_FULL = (errno.ENOSPC, errno.EDQUOT)
SIZE = 1 << 20
SLOW_S = 1.0
CLOCK_S = 2.0
LITTLE_BYTES = 10**9
LITTLE_FILES = 10_000
VOLATILE = ("tmpfs", "ramfs")  # lost after a reboot
NAME = ".holdfast-doctor"
FORGOTTEN_S = 3600.0  # the age at which the folder of a killed doctor is removed


def check_file_system(directory: Path, needed_bytes: int = 0) -> Iterator[Check]:
    """Run all checks in a folder inside `directory`, and remove that folder.

    `needed_bytes`: the size of two checkpoints.
    """
    yield _check_type(directory)
    place = directory / f"{NAME}-{os.getpid()}"
    try:
        for old in scan.glob(directory, f"{NAME}-*"):
            if time.time() - old.stat().st_mtime > FORGOTTEN_S:
                disk.remove_tree(old)
        disk.make_dir(place)
    except OSError as error:
        full = error.errno in _FULL
        todo = (
            "remove files: space or inodes are used up"
            if full
            else "choose a directory of your own for runs"
        )
        yield problem("writing", f"{directory}: {error.strerror}", todo)
        return
    try:
        for name, check in TRIALS.items():
            yield _run_check(name, check, place)
    finally:
        disk.remove_tree(place)
    yield from _check_space(directory, needed_bytes)
    yield from _check_quota()


def _run_check(name: str, check: Callable[[Path], Check], place: Path) -> Check:
    try:
        return check(place)
    except OSError as error:
        full = error.errno in _FULL
        return problem(
            name,
            f"{error.strerror}",
            "free some space" if full else "choose another file system for runs",
        )


def _check_type(directory: Path) -> Check:
    """Check the file system's type: that of the last mount whose mount point is a parent."""
    own = os.path.realpath(directory)
    kind, point = "unknown", ""
    if not scan.exists(_MOUNTS):
        return warning(
            "file system", "not known: there is no /proc", "Linux is what the tests run on"
        )
    with open(_MOUNTS, encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            left, _, right = line.partition(" - ")
            at = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), left.split()[4])
            if (own == at or own.startswith(at.rstrip("/") + "/")) and len(at) >= len(point):
                kind, point = right.split()[0], at
    if kind in VOLATILE:
        return warning(
            "file system",
            f"{kind}, mounted on {point}: memory",
            "runs there are gone after a reboot",
        )
    return ok("file system", f"{kind}, mounted on {point}")


def _check_durability(place: Path) -> Check:
    began_s = time.monotonic()
    disk.write(place / "durable", [bytes(SIZE)])
    disk.sync_dir(place)
    took_s = time.monotonic() - began_s
    what = f"1 MiB and its name are durable after {1000 * took_s:.0f} ms"
    return (
        ok("fsync", what)
        if took_s < SLOW_S
        else warning("fsync", what, "a file system as slow will stall saves")
    )


def _check_rename(place: Path) -> Check:
    """Check that a rename which must replace nothing works: a commit is such a rename."""
    disk.make_dir(place / "a")
    disk.make_dir(place / "b")
    try:
        disk.rename_new(place / "a", place / "b")
    except FileExistsError:
        disk.rename_new(place / "a", place / "c")
        return ok("rename", "replaces nothing when it should not")
    return problem(
        "rename",
        "replaced an existing directory",
        "choose another file system: commits are not safe here",
    )


def _check_links(place: Path) -> Check:
    disk.write(place / "one", [b"x"])
    try:
        disk.link(place / "one", place / "two")
    except OSError as error:
        todo = "what does not change is written anew with each save"
        return warning("hard links", f"{error.strerror}", todo)
    return ok("hard links", "work")


def _check_direct_io(place: Path) -> Check:
    disk.write(place / "direct", [bytes(SIZE)])
    try:
        os.close(disk.open_plain(place / "direct", direct=True))
    except OSError as error:
        return warning(
            "O_DIRECT",
            f"{error.strerror}",
            "big files go through the page cache, and saves are slower",
        )
    return ok("O_DIRECT", "works")


def _check_clock(place: Path) -> Check:
    """Compare the clocks: a file server has its own."""
    before_s = time.time()
    disk.write(place / "clock", [b"x"])
    off_s = os.stat(place / "clock").st_mtime - (before_s + time.time()) / 2
    if abs(off_s) > CLOCK_S:
        what = f"the file server's is {abs(off_s):.0f} s {'ahead' if off_s > 0 else 'behind'}"
        return warning(
            "clock", what, "tell the site; until it is corrected, ages of files are judged wrongly"
        )
    return ok("clock", "agrees with the file server's")


_MOUNTS = "/proc/self/mountinfo"
TRIALS = {
    "fsync": _check_durability,
    "rename": _check_rename,
    "hard links": _check_links,
    "O_DIRECT": _check_direct_io,
    "clock": _check_clock,
}


def _check_space(directory: Path, needed_bytes: int) -> Iterator[Check]:
    facts = os.statvfs(directory)
    free, total = facts.f_bavail * facts.f_frsize, max(facts.f_blocks * facts.f_frsize, 1)
    what = f"{size(free)} free of {size(total)}"
    if needed_bytes > free:
        yield problem(
            "space", f"{what}; two checkpoints of this run need {size(needed_bytes)}", "free some"
        )
    elif free < LITTLE_BYTES:
        yield warning("space", what, "free some, or keep fewer checkpoints")
    else:
        yield ok("space", what)
    if facts.f_files and facts.f_favail < LITTLE_FILES:
        yield warning(
            "files", f"room for {facts.f_favail} more", "remove some; a checkpoint has a few files"
        )


def _check_quota() -> Iterator[Check]:
    try:
        found = quotas()
    except ClusterError as error:
        yield warning("quota", str(error), "the file server that keeps quotas does not answer")
        return
    for each in found:
        left = each.limit_bytes - each.used_bytes
        what = (
            f"{each.place}: {size(each.used_bytes)} used "
            f"of {size(each.limit_bytes)} by {each.owner}"
        )
        if each.limit_bytes and left <= 0:
            yield problem("quota", what, "free some: nothing can be saved there")
        elif each.limit_bytes and left < LITTLE_BYTES:
            yield warning("quota", what, "free some, or keep fewer checkpoints")
        elif each.limit_bytes:
            yield ok("quota", what)
        files = each.limit_files - each.used_files
        what = f"{each.place}: {each.used_files} files of {each.limit_files} by {each.owner}"
        if each.limit_files and files <= 0:
            yield problem("quota of files", what, "remove some: nothing can be saved there")
        elif each.limit_files and files < LITTLE_FILES:
            yield warning("quota of files", what, "remove some; a checkpoint has a few files")
