"""Faults of the disk below one folder, by a plan, in all threads of this process.

What the plan calls a request is a change as tests/faults.py names it: "create", "write", "fsync", "rename" and so on.
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import faults
from fault_plans import Plan

SLOW_S = 0.5
ERRORS = {name: getattr(errno, name) for name in ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EACCES", "ESTALE", "ETIMEDOUT")}


_open: list[AbstractContextManager[None]] = []  # a door that nobody holds is closed


class EveryThread:
    """In the place of a context variable: the same act for all threads, each of which may be inside of it."""

    def __init__(self, act: faults.Act) -> None:
        self._act, self._within = act, threading.local()

    def get(self) -> faults.Act | None:
        return None if getattr(self._within, "now", False) else self._act

    def set(self, act: faults.Act | None) -> None:
        self._within.now = act is None

    def reset(self, _: object) -> None:
        self._within.now = False


class Striking:
    """Makes the faults of a plan below `root`."""

    def __init__(self, plan: Plan, root: Path) -> None:
        self._plan, self._root = plan, os.fspath(root) + "/"

    def __call__(self, call: faults.Call, perform: Callable[[], Any]) -> Any:
        if not self._concerns(call) or (fault := self._plan.due(call.name)) is None:
            return perform()
        if fault.what == "slow disk":
            self._plan.struck(fault)
            time.sleep(SLOW_S)
            return perform()
        if fault.what == "a bit turned over":
            if not call.data:
                self._plan.back(fault)
                return perform()
            self._plan.struck(fault)
            return turned(call, perform)
        name, _, half = fault.what.partition(", ")
        if half == "half written" and call.data:
            faults.half_of(call)
        self._plan.struck(fault)
        raise OSError(ERRORS[name], os.strerror(ERRORS[name]), call.path or None)

    def _concerns(self, call: faults.Call) -> bool:
        path = call.target or call.path
        if not path and call.descriptor >= 0:
            path = os.readlink(f"/proc/self/fd/{call.descriptor}")
        return os.path.abspath(path).startswith(self._root)


def turned(call: faults.Call, perform: Callable[[], Any]) -> Any:
    """Write, and turn over one bit of what was written. The writer is told that all is well."""
    written = perform()
    begin = os.lseek(call.descriptor, 0, os.SEEK_CUR) - written if call.offset is None else call.offset
    at = written // 2
    plain = os.open(f"/proc/self/fd/{call.descriptor}", os.O_WRONLY)
    try:
        os.pwrite(plain, bytes([memoryview(call.data).cast("B")[at] ^ 1]), begin + at)
    finally:
        os.close(plain)
    return written


def strike(plan: Plan, root: Path) -> None:
    """From now on, until this process ends."""
    act = Striking(plan, root)
    faults._here = EveryThread(act)  # type: ignore[assignment]
    _open.append(faults.door(act))
    _open[-1].__enter__()
