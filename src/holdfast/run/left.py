"""Left: whether a loop was left by `break` or `return`, or by an exception. Only a run without a block has to ask.

A generator that its loop has let go of sees GeneratorExit in each of these cases. The frame that let go of it tells
them apart: `break` and `return` pop the iterator with an instruction of their own, and an exception leaves that frame at
the instruction which raised it. What this table does not know counts as an exception: then nothing is committed as
finished, and the next start goes on from the last save.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Collection
from types import CodeType, FrameType
from typing import NamedTuple

_POPS = frozenset({"POP_TOP", "POP_ITER"})  # the second since CPython 3.14
_SUSPENDED = frozenset({"YIELD_VALUE", "RESUME"})  # a generator around ours that is closed in its turn, as tqdm's
_TAKES = frozenset({"FOR_ITER"})  # an iterator around ours raised, or had enough (islice)


class Left(NamedTuple):
    """How a loop was left."""

    on_purpose: bool  # by `break` or `return`
    unclear: bool  # it may have been an iterator that had enough
    code: CodeType | None  # of the function or module in which the loop stands


def how(ours: Collection[CodeType]) -> Left:
    """How the loop was left whose generator, of a function in `ours`, is being closed on this thread."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the frames are what this is about
    while frame is not None and frame.f_code not in ours:
        frame = frame.f_back
    frame = frame.f_back if frame is not None else None
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR and _instruction(frame) in _SUSPENDED:
        frame = frame.f_back
    if frame is None:
        return Left(on_purpose=False, unclear=False, code=None)
    now = _instruction(frame)
    return Left(on_purpose=now in _POPS, unclear=now in _TAKES, code=frame.f_code)


def _instruction(frame: FrameType) -> str:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] if frame.f_lasti >= 0 else ""
