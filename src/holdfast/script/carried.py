"""Carried: finds in a loop's byte code which variables it reads before it assigns them again. Pure.

A variable is *carried* when the next pass may read the value that this pass left. Only such a
variable can make a resumed run differ. `loss` cannot: each pass assigns it before reading it.
"""

from __future__ import annotations

import dis
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any, NamedTuple

# no next instruction
_END = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD")
_VARIABLES = ("FAST", "NAME", "DEREF", "GLOBAL", "CLASSDEREF", "CLOSURE")
# since 3.12: a comprehension of the same code begins, with a variable of its own
_HIDES = "LOAD_FAST_AND_CLEAR"


class CarriedVariables(NamedTuple):
    """What the code does with its variables after one instruction."""

    live: frozenset[str]  # may be read before they are assigned
    stored: frozenset[str]  # may be assigned


class _Instruction(NamedTuple):
    reads: frozenset[str]
    writes: frozenset[str]
    follows: tuple[int, ...]  # numbers of the instructions that may be executed next


@lru_cache(maxsize=256)
def variables_carried_past(code: CodeType, at: int) -> CarriedVariables:
    """Return which variables are carried past the instruction at byte `at`,
    which is being executed.
    """
    steps, here = _decode_instructions(code, at)
    reached = _reachable_from(steps, here)
    live = _live_variables(steps, reached)
    after = frozenset[str]().union(*(live[number] for number in steps[here].follows))
    stored = frozenset[str]().union(*(steps[number].writes for number in reached))
    return CarriedVariables(after.union(code.co_cellvars, code.co_freevars), stored)


@lru_cache(maxsize=256)
def variables_left_by_body(code: CodeType, at: int) -> frozenset[str]:
    """Return the variables that the body of the `for` at byte `at` assigns,
    and that may be read behind the loop.
    """
    steps, here = _decode_instructions(code, at)
    behind = max(steps[here].follows, default=here)
    if behind <= here + 1:  # it is no `for`: a call of next(), say
        return frozenset()
    assigned = frozenset[str]().union(*(step.writes for step in steps[here + 1 : behind]))
    return assigned & _live_variables(steps, _reachable_from(steps, here))[behind]


@lru_cache(maxsize=1024)
def globals_used_by(code: CodeType) -> frozenset[str]:
    """Return the module's names that `code`, or a function inside it, reads or assigns."""
    own = {
        each.argval for each in _instructions(code) if each.opname.endswith(("_GLOBAL", "_NAME"))
    }
    inner = [globals_used_by(each) for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(own).union(*inner)


@lru_cache(maxsize=256)
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return [each for each in dis.get_instructions(code) if each.opname != "CACHE"]


def _decode_instructions(code: CodeType, at: int) -> tuple[list[_Instruction], int]:
    """Return the instructions of `code`, and the number of the one at byte `at`."""
    found = _instructions(code)
    number_of = {each.offset: number for number, each in enumerate(found)}
    steps = []
    hidden = _comprehension_variables(found, number_of)
    for number, each in enumerate(found):
        follows = (
            [] if each.opname in _END or each.opname.startswith("JUMP_BACKWARD") else [number + 1]
        )
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            follows.append(number_of.get(each.argval, number + 1))
        reads, writes = _reads_and_writes(each)
        own = hidden.get(number, frozenset())
        steps.append(
            _Instruction(
                reads - own,
                writes - own,
                tuple(follow for follow in follows if follow < len(found)),
            )
        )
    # since 3.12 a frame may point into the cache behind its instruction
    while at > 0 and at not in number_of:
        at -= 1
    return steps, number_of.get(at, 0)


def _comprehension_variables(
    found: list[dis.Instruction], number_of: dict[int, int]
) -> dict[int, frozenset[str]]:
    """Return the variables that are a comprehension's own, by the numbers of its instructions.

    The comprehension puts the values of those names aside, and puts them back behind its loop.
    """
    hidden: dict[int, frozenset[str]] = {}
    for number, each in enumerate(found):
        if each.opname != _HIDES:
            continue
        loop = next(
            (at for at in range(number, len(found)) if found[at].opname == "FOR_ITER"),
            len(found) - 1,
        )
        behind = number_of.get(found[loop].argval, number)
        back = (
            at for at in range(behind, len(found)) if each.argval in _reads_and_writes(found[at])[1]
        )
        for at in range(number, next(back, number) + 1):
            hidden[at] = hidden.get(at, frozenset()) | {each.argval}
    return hidden


def _reads_and_writes(each: dis.Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """Return the variables that an instruction reads before it assigns them, and those that it
    assigns.

    Newer Pythons fuse two instructions into one: LOAD_FAST_LOAD_FAST, STORE_FAST_LOAD_FAST.
    """
    names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
    words = pairwise(each.opname.split("_"))
    verbs = [
        verb for verb, kind in words if verb in ("LOAD", "STORE", "DELETE") and kind in _VARIABLES
    ]
    found = [
        (verb, name) for verb, name in zip(verbs, names, strict=False) if isinstance(name, str)
    ]
    writes = frozenset(name for verb, name in found if verb != "LOAD")
    reads = frozenset(name for verb, name in found if verb == "LOAD")
    return (reads - writes if verbs[:1] == ["STORE"] else reads), writes


def _reachable_from(steps: list[_Instruction], begin: int) -> list[int]:
    """Numbers of the instructions that may still be executed after `begin`, in ascending order."""
    seen: set[int] = set()
    waiting = list(steps[begin].follows)
    while waiting:
        number = waiting.pop()
        if number not in seen:
            seen.add(number)
            waiting += steps[number].follows
    return sorted(seen)


def _live_variables(steps: list[_Instruction], reached: list[int]) -> dict[int, frozenset[str]]:
    """For each instruction, the variables that are read from there on before they are assigned."""
    live: dict[int, frozenset[str]] = dict.fromkeys(reached, frozenset())
    changed = True
    while changed:
        changed = False
        for number in reversed(reached):
            step = steps[number]
            after = frozenset[str]().union(*(live[follow] for follow in step.follows))
            now = step.reads | (after - step.writes)
            if now != live[number]:
                live[number], changed = now, True
    return live


@lru_cache(maxsize=1024)
def accesses_member(code: CodeType, name: str, member: str) -> bool:
    """Whether `code` says `name.member`."""
    words = pairwise(each.argval for each in _instructions(code) if each.opname != "PUSH_NULL")
    return any(one == name and other == member for one, other in words)


class AttributeUse(Enum):
    """How the methods of a class use an attribute."""

    CARRIED = "carried"  # one reads it before it is set
    SET = "set"  # each sets it first, or only others than the step read it
    UNSEEN = "unseen"  # none names it


_STEPS = ("forward", "__call__", "step")  # methods that a step calls


@lru_cache(maxsize=4096)
def attribute_use(kind: type, name: str) -> AttributeUse:
    """Return how the methods of `kind` use the attribute `name`;
    "": attributes whose names they compute.
    """
    methods = [
        _unwrap(each)
        for base in kind.__mro__
        for each in vars(base).values()
        if isinstance(each, FunctionType)
    ]
    methods = [each for each in methods if str(each.__module__).partition(".")[0] != "torch"]
    if not name:
        return (
            AttributeUse.CARRIED
            if any("setattr" in each.__code__.co_names for each in methods)
            else AttributeUse.UNSEEN
        )
    found = {
        each: _accesses(each.__code__, name) for each in methods if isinstance(each, FunctionType)
    }
    stored = any("STORE" in each for each in found.values())
    for method, accesses in found.items():
        reads_first = accesses[:1] == ("LOAD",)
        renews = "clear" in method.__code__.co_names or (
            not stored and method.__name__ not in _STEPS
        )
        if reads_first and not renews and ("STORE" in accesses or method.__name__ in _STEPS):
            return AttributeUse.CARRIED
    return AttributeUse.SET if any(found.values()) else AttributeUse.UNSEEN


def _unwrap(method: Any) -> Any:
    """The function that a wrapper stands for, as around each `step` of torch's optimizers."""
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    return method


@lru_cache(maxsize=4096)
def _accesses(code: CodeType, name: str) -> tuple[str, ...]:
    """LOAD and STORE of an attribute, in the order of the code."""
    words = (each.opname.partition("_")[0] for each in _instructions(code) if each.argval == name)
    inner = (
        word
        for each in code.co_consts
        if isinstance(each, CodeType)
        for word in _accesses(each, name)
    )
    return (*(word for word in words if word in ("LOAD", "STORE")), *inner)
