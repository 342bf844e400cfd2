"""Source: a user's script as a syntax tree that keeps its formatting, and where its Run is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import libcst as cst
from libcst import metadata

from ...errors import UsageError

Node = TypeVar("Node", bound=cst.CSTNode)
_LONG = 88
Edit = Callable[[Any], Any]  # takes a node in which all inner edits are made
Function = cst.FunctionDef


class FixRefused(Exception):
    """A change that cannot be made, or cannot be made safely. The text says why."""


class RunPlace(NamedTuple):
    """Where a script makes its Run."""

    call: cst.Call  # Run(...)
    statement: cst.BaseStatement  # `run = Run(...).start()`, or the whole block
    name: str  # the variable that holds the run
    function: Function | None  # None: the script makes it at module level
    after: int  # the last line on which the run is not there yet


class ScriptSource:
    """One version of a script. An edit is noted by its node; `text()` applies all of them."""

    def __init__(self, text: str) -> None:
        try:
            wrapper = metadata.MetadataWrapper(cst.parse_module(text))
        except cst.ParserSyntaxError as error:
            raise UsageError(
                f"the script is not Python that can be read: line {error.raw_line}"
            ) from error
        self.module = wrapper.module
        self._parents = wrapper.resolve(metadata.ParentNodeProvider)
        self._scopes = wrapper.resolve(metadata.ScopeProvider)
        self._positions = wrapper.resolve(metadata.PositionProvider)
        self._edits: dict[cst.CSTNode, Edit] = {}
        self._above: dict[cst.CSTNode, list[cst.BaseStatement]] = {}
        self._below: dict[cst.CSTNode, list[cst.BaseStatement]] = {}
        self._head: list[cst.BaseStatement] = []
        self.all: list[cst.CSTNode] = [*iterate_nodes(self.module)]

    # -- reading
    # ----------------------------------------------------------------------------------------------

    def line(self, node: cst.CSTNode) -> int:
        return self._positions[node].start.line

    def last_line(self, node: cst.CSTNode) -> int:
        return self._positions[node].end.line

    def scope(self, node: cst.CSTNode) -> metadata.Scope:
        found = self._scopes[node]
        if found is None:
            raise FixRefused("a name there belongs to no scope that can be read")
        return found

    def enclosing_nodes(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes around the node, innermost first."""
        while (parent := self._parents.get(node)) is not None:
            yield (node := parent)

    def function(self, node: cst.CSTNode) -> Function | None:
        return next(
            (each for each in self.enclosing_nodes(node) if isinstance(each, Function)), None
        )

    def statement(self, node: cst.CSTNode) -> cst.BaseStatement:
        inside = (
            each
            for each in (node, *self.enclosing_nodes(node))
            if isinstance(each, cst.BaseStatement)
        )
        return next(inside)

    def inner_scope(self, function: Function | None) -> metadata.Scope:
        """Return the scope of a function's body, or of the module."""
        return self.scope(self.module if function is None else function.body)

    def code(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node).strip()

    def calls(self, within: cst.CSTNode | None = None) -> Iterator[cst.Call]:
        nodes = self.all if within is None else iterate_nodes(within)
        return (each for each in nodes if isinstance(each, cst.Call))

    def functions(self, name: str) -> list[Function]:
        return [each for each in self.all if isinstance(each, Function) and each.name.value == name]

    def assigned(self, name: str, function: Function | None) -> list[cst.CSTNode]:
        """Return where the name is bound, in that scope itself."""
        scope = self.inner_scope(function)
        return [
            each.node for each in scope.assignments[name] if isinstance(each, metadata.Assignment)
        ]

    def is_bound(self, root: str, at: cst.CSTNode) -> bool:
        """Whether the name surely has a value there:
        a line above that always runs binds it, or uses it.
        """
        function = self.function(at)
        found = self.assigned(root, function)
        if function is not None and not found:
            return bool(self.assigned(root, None))
        if not found:
            return False
        uses = (each for each in self.all if isinstance(each, cst.Name) and each.value == root)
        around = {*self.enclosing_nodes(at)}
        return any(
            isinstance(each, cst.Param)
            or (
                self.line(each) < self.line(at)
                and all(one in around for one in self._conditions(each))
            )
            for each in (*found, *uses)
        )

    def _conditions(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the enclosing nodes that may keep it from being run."""
        kinds = (
            cst.If
            | cst.Else
            | cst.For
            | cst.While
            | cst.ExceptHandler
            | cst.IfExp
            | Function
            | cst.Lambda
        )
        return (each for each in self.enclosing_nodes(node) if isinstance(each, kinds))

    def find_run(self) -> RunPlace | None:
        """Return where the script makes its Run; None: nowhere.

        Raises:
            Refused: in several places, or in a form that is not understood.
        """
        calls = [each for each in self.calls() if self.code(each.func) in ("Run", "holdfast.Run")]
        if len(calls) > 1:
            raise FixRefused(
                f"the script makes {len(calls)} runs, and only one can be mended at a time"
            )
        return self._run_place(calls[0]) if calls else None

    def _run_place(self, call: cst.Call) -> RunPlace:
        function, statement = self.function(call), self.statement(call)
        for node in self.enclosing_nodes(call):
            if isinstance(node, cst.WithItem) and node.item is call and node.asname is not None:
                after = self.last_line(node.asname)
                return RunPlace(call, statement, self.code(node.asname.name), function, after)
            if isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Name):
                if self.code(node.value).endswith(".start()"):
                    return RunPlace(
                        call,
                        statement,
                        node.targets[0].target.value,
                        function,
                        self.last_line(statement),
                    )
                break
        raise FixRefused(
            "the Run is made in a form that is not known: write `run = Run(...).start()`"
        )

    # -- writing
    # ----------------------------------------------------------------------------------------------

    def edit(self, node: cst.CSTNode, change: Edit) -> None:
        before = self._edits.get(node)
        self._edits[node] = change if before is None else lambda updated: change(before(updated))

    def replace(self, node: cst.CSTNode, code: str) -> None:
        """Replace an expression by code."""
        self.edit(node, lambda _: cst.parse_expression(code))

    def wrap(self, node: cst.CSTNode, head: str, tail: str = ")") -> None:
        """Replace the expression `x` by `head` x `tail`, with the inner edits kept."""
        self.edit(
            node,
            lambda updated: cst.parse_expression(
                f"{head}{self.module.code_for_node(updated)}{tail}"
            ),
        )

    def insert_before(self, statement: cst.CSTNode, *codes: str) -> None:
        """Insert statements before one; its comments stay with it,
        and empty lines above come first.
        """
        self._above[statement] = [self._statement(code) for code in codes]

    def insert_after(self, statement: cst.CSTNode, code: str) -> None:
        self._below.setdefault(statement, []).append(self._statement(code))

    def remove(self, statement: cst.CSTNode) -> None:
        self.edit(statement, lambda _: cst.RemoveFromParent())

    def _statement(self, code: str) -> cst.BaseStatement:
        made = cst.parse_statement(code, self.module.config_for_parsing)
        if not isinstance(made, cst.BaseStatement):
            raise TypeError(code)
        return made

    def add_import(self, name: str, home: str = "holdfast") -> None:
        """Import `name` from `home` in the script: in an existing import line, or in a new
        one after the others.
        """
        for line in filter(_is_import, self.module.body):
            there = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
            if not isinstance(there, cst.ImportFrom) or isinstance(there.names, cst.ImportStar):
                continue
            if there.module is not None and self.code(there.module) == home:
                if all(alias.evaluated_name != name for alias in there.names):
                    self.edit(there, lambda updated: _importing(updated, name))
                return
        above = list[cst.CSTNode]()
        for each in self.module.body:
            if not isinstance(each, cst.SimpleStatementLine):
                break
            if _is_import(each) or (not above and self.module.get_docstring() is not None):
                above.append(each)
        if above:
            self.insert_after(above[-1], f"from {home} import {name}")
        else:
            self._head.append(self._statement(f"from {home} import {name}"))

    def make_run_global(self, place: RunPlace, users: Iterable[cst.CSTNode]) -> None:
        """Declare the run's variable global if code outside of the function that makes it uses it.

        Raises:
            Refused: another variable has that name there.
        """
        outside = [
            each for each in users if place.function not in (each, *self.enclosing_nodes(each))
        ]
        if place.function is None or not outside:
            return
        for function in {self.function(each) for each in outside} - {None}:
            if self.assigned(place.name, function):
                raise FixRefused(
                    f"{place.name} is another variable in "
                    f"{function.name.value if function else 'it'}"
                )
        if f"global {place.name}" not in self.code(place.function):
            self.insert_before(place.statement, f"global {place.name}")

    def text(self) -> str:
        """Return the script with all edits."""
        changed = self.module.visit(_EditApplier(self._edits, self._above, self._below))
        if not isinstance(changed, cst.Module):
            raise TypeError("a module became something else")
        found = changed.with_changes(body=[*self._head, *changed.body]).code
        cst.parse_module(found)  # what is written can be read
        return found


class _EditApplier(cst.CSTTransformer):
    def __init__(
        self, edits: Mapping[Any, Edit], above: Mapping[Any, Any], below: Mapping[Any, Any]
    ) -> None:
        super().__init__()
        self._edits, self._above, self._below = edits, above, below

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        edit = self._edits.get(original_node)
        now = updated_node if edit is None else edit(updated_node)
        above, below = self._above.get(original_node, []), self._below.get(original_node, [])
        if not above and not below:
            return now
        if above:
            lines = now.leading_lines
            empty = next(
                (at for at, each in enumerate(lines) if each.comment is not None), len(lines)
            )
            above = [above[0].with_changes(leading_lines=lines[:empty]), *above[1:]]
            now = now.with_changes(leading_lines=lines[empty:])
        return cst.FlattenSentinel([*above, now, *below])


def iterate_nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and all that it contains, in the order of the text."""
    yield node
    for child in node.children:
        yield from iterate_nodes(child)


def keyword_of(arg: cst.Arg) -> str:
    """Return the name that an argument is given by; empty: by its place."""
    return arg.keyword.value if arg.keyword is not None else ""


def with_entry(mapping: cst.BaseExpression, word: str, value: str) -> cst.BaseExpression:
    """Return the mapping, `dict(...)`, `{...}` or anything else, with one more entry."""
    entry = cst.parse_expression(value)
    if (
        isinstance(mapping, cst.Call)
        and isinstance(mapping.func, cst.Name)
        and mapping.func.value == "dict"
    ):
        return _one_argument_per_line(with_argument(mapping, word, value))
    if isinstance(mapping, cst.Dict):
        made = cst.DictElement(cst.SimpleString(f'"{word}"'), entry)
        return mapping.with_changes(
            elements=_append_entry(mapping.elements, made, mapping.lbrace.whitespace_after)
        )
    code = cst.Module([]).code_for_node(mapping)
    return cst.parse_expression(f"dict({code}, {word}={value})")


def with_argument(call: cst.Call, word: str, value: str) -> cst.Call:
    """Return the call with one more keyword argument, laid out like the others."""
    made = cst.Arg(
        cst.parse_expression(value),
        cst.Name(word),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    return call.with_changes(args=_append_entry(call.args, made, call.whitespace_before_args))


def _append_entry(entries: Sequence[Any], made: Any, before: Any) -> list[Any]:
    """Return the entries and one more; a trailing comma stays,
    and so do comments and one entry per line.
    """
    if not entries or not isinstance(last := entries[-1].comma, cst.Comma):
        return [*entries, made]
    between = entries[-2].comma.whitespace_after if len(entries) > 1 else before
    if isinstance(between, cst.ParenthesizedWhitespace):
        end = last.whitespace_after
        comment = (
            end.first_line
            if isinstance(end, cst.ParenthesizedWhitespace)
            else cst.TrailingWhitespace()
        )
        between = between.with_changes(first_line=comment, empty_lines=[])
        if isinstance(end, cst.ParenthesizedWhitespace):
            plain = cst.TrailingWhitespace(newline=comment.newline)
            last = last.with_changes(whitespace_after=end.with_changes(first_line=plain))
    made = made.with_changes(comma=last)
    return [
        *entries[:-1],
        entries[-1].with_changes(comma=cst.Comma(whitespace_after=between)),
        made,
    ]


def _one_argument_per_line(call: cst.Call) -> cst.Call:
    """Return the call with one argument per line if it would be long on one line."""
    code = cst.Module([]).code_for_node(call)
    if len(code) <= _LONG or "\n" in code:
        return call
    inside = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace("    "))
    commas = [cst.Comma(whitespace_after=inside)] * (len(call.args) - 1)
    commas.append(cst.Comma(whitespace_after=cst.ParenthesizedWhitespace(indent=True)))
    args = [arg.with_changes(comma=comma) for arg, comma in zip(call.args, commas, strict=True)]
    return call.with_changes(whitespace_before_args=inside, args=args)


def _importing(line: cst.ImportFrom, name: str) -> cst.ImportFrom:
    if isinstance(line.names, cst.ImportStar):
        return line
    return line.with_changes(
        names=_append_entry(line.names, cst.ImportAlias(cst.Name(name)), cst.SimpleWhitespace(""))
    )


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[0], cst.Import | cst.ImportFrom
    )
