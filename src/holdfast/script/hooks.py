"""Hooks: the values that a hook of a tracked object may carry from step to step.

They are in its closure, its defaults, the object whose method it is, the arguments of a partial, or
its module's names. Only the hook's source is read, and no code of it is called: a hook without
source, or of an installed library, is passed over.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from .visible import is_ours, is_user_code, own_attributes

_RENEWS = ("clear", "copy_", "zero_", "fill_")  # methods that set a value without reading it
_ADDS = ("append", "appendleft", "add", "extend", "insert", "update", "setdefault")
_DEEPEST = 3  # functions that a hook calls, in a row


class HookValue(NamedTuple):
    """One value that a hook reads before it sets it."""

    holder: Any  # a cell, a function, a partial, a module's names, or the object of an attribute
    owner: str  # the name of that object in the hook; empty: the value has a name of its own
    name: str
    value: Any
    is_rebound: bool  # the hook binds the name to other objects

    @property
    def advice(self) -> str:
        """The line to write."""
        word = self.name.strip("_")
        if self.owner:
            made = self.owner
            if self.owner == "self":
                made = type(self.holder).__name__.lower()
            return f'Write Run(..., dict(..., {word}=Fields({made}, "{self.name}")))'
        if isinstance(self.holder, dict) and self.is_rebound:
            return f'Write Run(..., dict(..., {word}=Fields(globals(), "{self.name}")))'
        if self.is_rebound:
            return (
                f"Write Run(..., vars=dict({self.name}={self.name})), "
                f"and run.vars.{self.name} in the hook"
            )
        return f"Make {self.name} before Run, and write Run(..., dict(..., {word}={self.name}))"


def carried_by_hook(hook: Any, depth: int = 0) -> Iterator[HookValue]:
    """Yield the values that a hook, or a function of the script that it calls, reads before it
    sets them.
    """
    called = hook.func if isinstance(hook, partial) else hook
    if not isinstance(called, FunctionType | MethodType):
        method = vars(type(called)).get("__call__")
        called = MethodType(method, called) if isinstance(method, FunctionType) else None
    function: Any = getattr(called, "__func__", called)
    while hasattr(function, "__wrapped__"):  # as by torch.no_grad()
        function = function.__wrapped__
    if depth > _DEEPEST or not isinstance(function, FunctionType):
        return
    code = function.__code__
    if not is_user_code(code.co_filename, function.__module__ or ""):
        return
    names = _names_of(function)
    given = [called.__self__] if isinstance(called, MethodType) else []
    if isinstance(hook, partial):
        given += hook.args
        names |= {name: (hook, value) for name, value in hook.keywords.items()}
    names |= {name: (hook, value) for name, value in zip(code.co_varnames, given, strict=False)}
    for node in _nodes_of(code.co_filename, code.co_firstlineno, code.co_name):
        uses = _Uses(names)
        uses.read(node)
        yield from uses.carried()
        for each in uses.called:
            yield from carried_by_hook(each, depth + 1)


def _names_of(function: FunctionType) -> dict[str, tuple[Any, Any]]:
    """The values behind a function's names that outlive its call, each with what holds it."""
    code, scope = function.__code__, function.__globals__
    names: dict[str, tuple[Any, Any]] = {
        name: (scope, scope[name]) for name in code.co_names if name in scope
    }
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has no value yet
            names[name] = cell, cell.cell_contents
    defaults = function.__defaults__ or ()
    last = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    by_name = {**dict(zip(last, defaults, strict=True)), **(function.__kwdefaults__ or {})}
    return names | {name: (function, value) for name, value in by_name.items()}


@lru_cache(maxsize=256)
def _nodes_of(file: str, line: int, name: str) -> tuple[ast.AST, ...]:
    """The function of that name at that line of a file; several lambdas of one line: all."""
    tree = _tree_of(file)
    kinds = ast.Lambda if name == "<lambda>" else (ast.FunctionDef, ast.AsyncFunctionDef)
    found = (each for each in ast.walk(tree) if isinstance(each, kinds))
    return tuple(
        each
        for each in found
        if line in (each.lineno, *(one.lineno for one in getattr(each, "decorator_list", ())))
    )


@lru_cache(maxsize=16)
def _tree_of(file: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # it has changed since it was imported
        return ast.Module([], [])


class _Uses(ast.NodeVisitor):
    """What a function does first with each of its names, and with their attributes."""

    def __init__(self, names: dict[str, tuple[Any, Any]]) -> None:
        self._names = names
        self._first: dict[tuple[str, str], bool] = {}  # root and attribute: whether read first
        self._set: set[tuple[str, str]] = set()
        self.called: list[Any] = []

    def read(self, node: ast.AST) -> None:
        body = getattr(node, "body", [])
        for each in body if isinstance(body, list) else [body]:
            self.visit(each)

    def carried(self) -> Iterator[HookValue]:
        for key in [key for key, read in self._first.items() if read]:
            root, name = key
            holder, value = self._names[root]
            if not name:
                yield HookValue(holder, "", root, value, key in self._set)
            else:
                own = (own_attributes(value) or {}).get(name)
                yield HookValue(value, root, name, own, key in self._set)

    def _key(self, node: ast.AST) -> tuple[str, str] | None:
        """The name, or its attribute, that an expression is, or is an item or a method of."""
        attribute = ""
        while isinstance(node, ast.Attribute | ast.Subscript):
            attribute = node.attr if isinstance(node, ast.Attribute) else ""
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._names:
            return None
        value = self._names[node.id][1]
        return node.id, attribute if attribute in (own_attributes(value) or {}) else ""

    def _note(self, node: ast.AST, *, read: bool) -> None:
        key = self._key(node)
        if key is not None:
            self._first.setdefault(key, read)

    def _store(self, target: ast.AST) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._store(each)
        elif isinstance(target, ast.Starred):
            self._store(target.value)
        elif isinstance(target, ast.Subscript):  # the other items stay: no read, and no renewal
            self.visit(target.slice)
        else:
            key = self._key(target)
            if key is not None and (isinstance(target, ast.Name) or key[1]):
                self._set.add(key)
                self._first.setdefault(key, False)

    def visit_Assign(self, line: ast.Assign) -> None:
        self.visit(line.value)
        for each in line.targets:
            self._store(each)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._store(node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._note(node.target, read=True)
        self.visit(node.value)
        self._store(node.target)

    def visit_Call(self, call: ast.Call) -> None:
        for each in (*call.args, *(one.value for one in call.keywords)):
            self.visit(each)
        func = call.func
        if isinstance(func, ast.Name) and func.id in self._names:
            self.called.append(self._names[func.id][1])
        elif isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
            owner = self._names.get(func.value.id, (None, None))[1]
            method = getattr(type(owner), func.attr, None)
            if isinstance(method, FunctionType) and not is_ours(owner):
                self.called.append(MethodType(method, owner))
        if isinstance(func, ast.Attribute) and func.attr in _RENEWS:
            self._note(func.value, read=False)
        elif not (isinstance(func, ast.Attribute) and func.attr in _ADDS):
            self.visit(func)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._note(node, read=True)
        if self._key(node) is None:
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.slice)
        self._note(node, read=True)
        if self._key(node) is None:
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._note(node, read=True)
