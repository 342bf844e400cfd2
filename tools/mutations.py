"""Every mutant that simple operators make of a package, each with a name that outlives moved lines. Pure.

A mutant is named by file, function, operator, source text of what is changed, and its number among equals in that
function. Annotations, docstrings, decorators, messages, `if TYPE_CHECKING` and the texts of errors are left alone.
"""

import ast
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
UNTOUCHED = ("annotation", "returns", "decorator_list", "type_params", "exc", "msg", "bases")


class Key(NamedTuple):
    """The name of a mutant."""

    file: str
    function: str
    operator: str
    source: str
    nth: int

    def __str__(self) -> str:
        more = f" (number {self.nth + 1})" if self.nth else ""
        return f"{self.file} {self.function}: {self.operator}: {self.source}{more}"


class Mutant(NamedTuple):
    """One change of one file."""

    key: Key
    line: int
    lines: tuple[
        int, ...
    ]  # of its statement, up to the change: which of them a tracer reports depends on the statement
    start: int  # of the bytes that are replaced
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The mutated file."""
        return source[: self.start] + self.text.encode() + source[self.end :]


class Change(NamedTuple):
    operator: str
    node: ast.expr | ast.stmt
    text: str


def room(file: str) -> str:
    """The top-level package or module of a source file: `run/loops.py` -> `run`, `disk.py` -> `disk`."""
    return Path(file).parts[0].removesuffix(".py")


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """All mutants of one file, in the order of its text."""
    tree = ast.parse(source)
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    seen: Counter[tuple[str, str, str]] = Counter()
    found = []
    for function, statement, change in _changes(tree):
        node = change.node
        text = " ".join(ast.unparse(node).split())
        named = (function, change.operator, text)
        start = offsets[node.lineno - 1] + node.col_offset
        end = offsets[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        lines = tuple(range(statement.lineno, node.lineno + 1))
        found.append(Mutant(Key(file, *named, seen[named]), node.lineno, lines, start, end, change.text))
        seen[named] += 1
    return found


def all_mutants(package: Path) -> list[Mutant]:
    """All mutants of all files below `package`."""
    files = sorted(package.rglob("*.py"))
    return [each for file in files for each in mutants_of(file.relative_to(package).as_posix(), file.read_bytes())]


def _changes(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, Change]]:
    """The function, the statement and the change, for each change."""

    def visit(node: ast.AST, place: str, statement: ast.stmt | None) -> Iterator[tuple[str, ast.stmt, Change]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            place = f"{place}.{node.name}".lstrip(".")
        if isinstance(node, ast.stmt):
            statement = node
        if statement is not None and isinstance(node, ast.stmt | ast.expr):
            for change in _of(node):
                yield place or "module", statement, change
        for child in _below(node):
            yield from visit(child, place, statement)

    yield from visit(tree, "", None)


def _below(node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node that may be changed."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        return
    for name, value in ast.iter_fields(node):
        if name not in UNTOUCHED and not (isinstance(node, ast.ClassDef) and name == "keywords"):
            yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST))


def _of(node: ast.stmt | ast.expr) -> Iterator[Change]:
    """The changes of one node, those below it left out."""
    yield from _of_condition(node)
    if isinstance(node, ast.Compare):
        yield from _of_comparison(node)
    elif isinstance(node, ast.expr):
        yield from _of_value(node)
    else:
        yield from _of_statement(node)


def _of_condition(node: ast.stmt | ast.expr) -> Iterator[Change]:
    tests: list[ast.expr] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        tests = [node.test]
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        tests = [test for each in node.generators for test in each.ifs]
    for test in tests:
        if not _negation(test) and not _fixed(test):
            yield Change("negate", test, f"(not ({ast.unparse(test)}))")


def _of_comparison(node: ast.Compare) -> Iterator[Change]:
    if len(node.ops) == 1 or isinstance(node.ops[0], ORDERS):
        left, *others = [ast.unparse(each) for each in (node.left, *node.comparators)]
        signs = [COMPARISONS[type(node.ops[0])], *(_sign(each) for each in node.ops[1:])]
        yield Change("compare", node, "".join((f"({left}", *map(" {} {}".format, signs, others), ")")))


def _of_value(node: ast.expr) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield Change("flip", node, str(not node.value))
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield Change("number", node, str(node.value + 1))
    elif isinstance(node, ast.BoolOp):
        sign = " or " if isinstance(node.op, ast.And) else " and "
        yield Change("and-or", node, "(" + sign.join(f"({ast.unparse(each)})" for each in node.values) + ")")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield Change("not", node, f"({ast.unparse(node.operand)})")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and not _sequence(node):
        sign = "-" if isinstance(node.op, ast.Add) else "+"
        yield Change("plus-minus", node, f"({ast.unparse(node.left)} {sign} ({ast.unparse(node.right)}))")


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    if isinstance(node, ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _message(node.value)
    ):
        yield Change("drop", node, "pass")
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield Change("return", node, "return None")
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub) and not _sequence(node):
        sign = "-=" if isinstance(node.op, ast.Add) else "+="
        yield Change("plus-minus", node, f"{ast.unparse(node.target)} {sign} {ast.unparse(node.value)}")


def _sign(operator: ast.cmpop) -> str:
    return ast.unparse(ast.Compare(ast.Name("a"), [operator], [ast.Name("b")])).removeprefix("a ").removesuffix(" b")


def _negation(test: ast.expr) -> bool:
    """Whether another operator makes the same mutant of this condition: `not x`, `a == b`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return True
    return isinstance(test, ast.Compare) and len(test.ops) == 1 and not isinstance(test.ops[0], ORDERS)


def _fixed(test: ast.expr) -> bool:
    """Whether a condition is no choice of the program: `while True`, `if TYPE_CHECKING`."""
    return isinstance(test, ast.Constant) or "TYPE_CHECKING" in ast.unparse(test)


def _message(call: ast.Call) -> bool:
    """Whether a call does nothing but say something: all that it is given is text."""
    given = [*call.args, *(each.value for each in call.keywords)]
    return bool(given) and all(_is_text(each) for each in given)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _sequence(node: ast.BinOp | ast.AugAssign) -> bool:
    """Whether a sum is plainly one of texts or lists, where minus is only a TypeError."""
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(_is_text(each) or isinstance(each, ast.List | ast.Tuple | ast.ListComp) for each in sides)


def sample(mutants: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """A sample with each room's share of `count`, in an order of which every beginning is such a sample, too."""
    rooms: dict[str, list[Mutant]] = defaultdict(list)
    for each in mutants:
        rooms[room(each.key.file)].append(each)
    total = sum(map(len, rooms.values()))
    if count >= total:
        shares = {name: len(members) for name, members in rooms.items()}
    else:
        shares = {name: count * len(members) // total for name, members in rooms.items()}
        lost = sorted(rooms, key=lambda name: (-(count * len(rooms[name]) % total), name))
        for name in lost[: count - sum(shares.values())]:
            shares[name] += 1
    draw = random.Random(seed)
    placed = []
    for name in sorted(rooms):
        chosen = draw.sample(rooms[name], shares[name])
        placed += [((index + draw.random()) / len(chosen), each) for index, each in enumerate(chosen)]
    return [each for _, each in sorted(placed, key=lambda pair: pair[0])]


def match(key: Key, there: Mapping[Key, Any], renames: Mapping[str, str]) -> Key | None:
    """The same mutant in another tree: by its whole name, or, where that is gone, by what only one mutant there has.

    `renames`: files and names in the code that have other names there, as the old tree has them.
    """
    file = renames.get(key.file, key.file)
    function, source = (_renamed(each, renames) for each in (key.function, key.source))
    renamed = Key(file, function, key.operator, source, key.nth)
    for exact in (renamed, renamed._replace(source=key.source), key):
        if exact in there:
            return exact
    same = [each for each in there if each.operator == key.operator and each.source in {key.source, source}]
    last = function.rpartition(".")[2]
    alike = (
        [each for each in same if each.function == function and each.nth == key.nth],
        [each for each in same if each.function.rpartition(".")[2] == last and each.nth == key.nth],
        [each for each in same if room(each.file) == room(file)],
        same,
    )
    return next((found[0] for found in alike if len(found) == 1), None)


def _renamed(text: str, renames: Mapping[str, str]) -> str:
    return re.sub(r"\w+", lambda word: renames.get(word[0], word[0]), text)
