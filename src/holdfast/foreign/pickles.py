"""Pickles as data: an interpreter of their opcodes that imports nothing and calls nothing.

A call in a pickle becomes a `PickledCall` with the callee's name. A caller that knows the name can
interpret it.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from ..errors import Damaged, StoreError
from .limits import OPCODES, Bounded


class PickledName(NamedTuple):
    """A class or a function that a pickle names."""

    module: str
    name: str

    def __str__(self) -> str:
        return (
            self.name
            if self.module in ("builtins", "__builtin__")
            else f"{self.module}.{self.name}"
        )


class PickledCall:
    """The result of a call: its arguments, and the content that the pickle added afterwards."""

    __slots__ = ("args", "items", "kind", "pairs", "state")

    def __init__(self, kind: str, args: tuple[Any, ...] = ()) -> None:
        self.kind, self.args = kind, args
        self.state: Any = None
        self.items: list[Any] = []  # members of a set, or of a subclass of list
        self.pairs: list[tuple[Any, Any]] = []  # of a mapping

    def build(self, state: Any) -> None:
        self.state = state

    def get(self, key: Any) -> Any:
        """Return the value under `key` in the content of a dict, or in an object's attributes; None
        if there is none.
        """
        pairs = self.pairs or (self.state.pairs if isinstance(self.state, PickledCall) else [])
        return next(
            (
                value
                for found, value in reversed(pairs)
                if type(found) is type(key) and found == key
            ),
            None,
        )


PERSISTENT = "a persistent id"  # a reference from a pickle to something outside it
DICT, ORDERED = "dict", "collections.OrderedDict"


def read(file: BinaryIO, where: object) -> Any:
    """Read the pickle at the file's position; return its value, and leave the position behind it.

    Raises:
        Damaged: it is no whole pickle.
        StoreError: it is larger than this reads.
    """
    machine = _PickleMachine()
    bounded: Any = Bounded(file, where)
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(bounded)):
            if number >= OPCODES:
                raise StoreError(
                    f"{where}: a pickle of more than {OPCODES} opcodes; it is not read"
                )
            machine.step(opcode.name, argument)
        return machine.pop()
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise Damaged(f"{where}: no whole pickle: {error}") from error


class _PickleMachine:
    """Interprets a pickle's opcodes as data and calls nothing. Its stack and memo are those that
    `pickletools` describes.
    """

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        if opcode in _PUSHES:
            self._stack.append(argument)
        elif opcode in _CONSTANTS:
            self._stack.append(_CONSTANTS[opcode]())
        elif opcode in _PUTS:
            self._memo[len(self._memo) if argument is None else int(argument)] = self._stack[-1]
        elif opcode in _GETS:
            self._stack.append(self._memo[int(argument)])
        elif opcode not in _NOTHING:
            _ACTIONS[opcode](self, argument)

    def pop(self) -> Any:
        return self._stack.pop()

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop_many(self, count: int) -> tuple[Any, ...]:
        return tuple(reversed([self._stack.pop() for _ in range(count)]))

    def mark(self) -> None:
        self._marked.append(self._stack)
        self._stack = []

    def since_mark(self) -> list[Any]:
        found, self._stack = self._stack, self._marked.pop()
        return found

    def drop(self, *, marked: bool = False) -> None:
        if marked or not self._stack:
            self.since_mark()
        else:
            self._stack.pop()

    def duplicate_top(self) -> None:
        self._stack.append(self._stack[-1])

    def append_values(self, values: list[Any]) -> None:
        """Append to the list on top, or to the object in place of a set or a subclass of list."""
        target = self._stack[-1]
        (target if isinstance(target, list) else target.items).extend(values)

    def set_items(self, values: list[Any]) -> None:
        self._stack[-1].pairs.extend(zip(values[::2], values[1::2], strict=True))

    def build(self, state: Any) -> None:
        target = self._stack[-1]
        if isinstance(target, PickledCall):
            target.build(state)
        else:
            raise TypeError(f"a state for a {type(target).__name__}")


def _call_object(callee: Any, args: Any, named: Any = None) -> PickledCall:
    """Return the object for a call; if a class is rebuilt through its base class, use the class."""
    arguments = args if isinstance(args, tuple) else (args,)
    if isinstance(named, PickledCall) and named.pairs:
        arguments += (named,)
    if not isinstance(callee, PickledName):
        return PickledCall("what another call returned", (callee, *arguments))
    if str(callee) in _OF_FIRST and arguments and isinstance(arguments[0], PickledName):
        return PickledCall(str(arguments[0]))
    return PickledCall(str(callee), arguments)


_OF_FIRST = {
    "copyreg._reconstructor",
    "copy_reg._reconstructor",
    "copyreg.__newobj__",
    "object.__new__",
}


def _inst(machine: _PickleMachine, argument: str) -> None:
    module, _, name = argument.partition(" ")
    machine.push(_call_object(PickledName(module, name), tuple(machine.since_mark())))


def _obj(machine: _PickleMachine, _: Any) -> None:
    callee, *args = machine.since_mark()
    machine.push(_call_object(callee, tuple(args)))


def _global(machine: _PickleMachine, argument: str) -> None:
    module, _, name = argument.partition(" ")
    machine.push(PickledName(module, name))


def _stack_global(machine: _PickleMachine, _: Any) -> None:
    module, name = machine.pop_many(2)
    if not isinstance(module, str) or not isinstance(name, str):
        raise TypeError("a name that is no text")
    machine.push(PickledName(module, name))


def _dict_of(values: list[Any]) -> PickledCall:
    made = PickledCall(DICT)
    made.pairs.extend(zip(values[::2], values[1::2], strict=True))
    return made


def _set_of(values: list[Any]) -> PickledCall:
    made = PickledCall("frozenset")
    made.items.extend(values)
    return made


_PUSHES = frozenset(
    (
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
    )
)
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": lambda: PickledCall(DICT),
    "EMPTY_SET": lambda: PickledCall("set"),
}
_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"))
_GETS = frozenset(("GET", "BINGET", "LONG_BINGET"))
_NOTHING = frozenset(("PROTO", "FRAME", "STOP"))
_ACTIONS: Mapping[str, Callable[[_PickleMachine, Any], None]] = {
    "MARK": lambda machine, _: machine.mark(),
    "POP": lambda machine, _: machine.drop(),
    "POP_MARK": lambda machine, _: machine.drop(marked=True),
    "DUP": lambda machine, _: machine.duplicate_top(),
    "APPEND": lambda machine, _: machine.append_values([machine.pop()]),
    "APPENDS": lambda machine, _: machine.append_values(machine.since_mark()),
    "ADDITEMS": lambda machine, _: machine.append_values(machine.since_mark()),
    "LIST": lambda machine, _: machine.push(machine.since_mark()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.push(machine.pop_many(1)),
    "TUPLE2": lambda machine, _: machine.push(machine.pop_many(2)),
    "TUPLE3": lambda machine, _: machine.push(machine.pop_many(3)),
    "DICT": lambda machine, _: machine.push(_dict_of(machine.since_mark())),
    "SETITEM": lambda machine, _: machine.set_items([*machine.pop_many(2)]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "FROZENSET": lambda machine, _: machine.push(_set_of(machine.since_mark())),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": lambda machine, _: machine.push(_call_object(*machine.pop_many(2))),
    "NEWOBJ": lambda machine, _: machine.push(_call_object(*machine.pop_many(2))),
    "NEWOBJ_EX": lambda machine, _: machine.push(_call_object(*machine.pop_many(3))),
    "INST": _inst,
    "OBJ": _obj,
    "BUILD": lambda machine, _: machine.build(machine.pop()),
    "PERSID": lambda machine, argument: machine.push(PickledCall(PERSISTENT, (argument,))),
    "BINPERSID": lambda machine, _: machine.push(PickledCall(PERSISTENT, (machine.pop(),))),
    **{
        each: lambda machine, argument: machine.push(
            PickledName("copyreg", f"extension {argument}")
        )
        for each in ("EXT1", "EXT2", "EXT4")
    },
}


def names_in(value: Any) -> Iterator[str]:
    """Yield every class and function that `value` names, each once: what an unpickler would have
    imported.
    """
    rest, seen, told = [value], set[int](), set[str]()
    while rest:
        each = rest.pop()
        if isinstance(each, PickledName) or (
            isinstance(each, PickledCall) and each.kind not in (DICT, PERSISTENT, "set")
        ):
            name = str(each) if isinstance(each, PickledName) else each.kind
            if name not in told:
                told.add(name)
                yield name
        if isinstance(each, list | tuple | PickledCall) and id(each) not in seen:
            seen.add(id(each))
            rest += members_of(each)


def members_of(value: Any) -> list[Any]:
    if not isinstance(value, PickledCall):
        return [] if isinstance(value, PickledName) else [*value]
    return [
        *value.args,
        *value.items,
        *(part for pair in value.pairs for part in pair),
        value.state,
    ]
