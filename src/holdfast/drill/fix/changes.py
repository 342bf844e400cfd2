"""Changes: each listed addition to a script, by its kind. Takes a script's text and returns the new
one. Pure.

Only additions of these kinds are made: an object among the tracked ones, named attributes or
variables as `Fields`, a variable in `run.vars`, a loader through `run.batches` or `run.enumerate`,
`Seeded` around a dataset, and, where nothing else helps, `finished="exit"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import libcst as cst
from libcst import metadata

from .. import advice
from ..report import Fix
from . import begin, loops
from .source import (
    FixRefused,
    Function,
    RunPlace,
    ScriptSource,
    iterate_nodes,
    keyword_of,
    with_argument,
    with_entry,
)

_READS_NAMES = ("locals", "vars", "exec", "eval", "dir")
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*|\[(\d+|'[^']*'|\"[^\"]*\")\])*")


def apply_fix(text: str, fix: Fix) -> str:
    """Return the script with the fix.

    Raises:
        Refused: it cannot be made there, or not safely.
    """
    before = text
    if fix.kind in ("track", "fields"):
        text = _move_run_to(text, fix.owner or fix.names[0])
    source, place = _parse_script(text)
    _KINDS[fix.kind](source, place, fix)
    found = source.text()
    if found == before:
        raise FixRefused("the script has it already")
    return found


def _parse_script(text: str) -> tuple[ScriptSource, RunPlace]:
    source = ScriptSource(text)
    place = source.find_run()
    if place is None:
        raise FixRefused("the script makes no Run")
    return source, place


# Objects and attributes
# ---------------------------------------------------------------------------------------------


def _add_tracked(source: ScriptSource, place: RunPlace, fix: Fix) -> None:
    _add_state_entry(source, place, fix.word, fix.names[0])


def _add_fields(source: ScriptSource, place: RunPlace, fix: Fix) -> None:
    source.add_import("Fields")
    _add_state_entry(source, place, fix.word, advice.tracking_argument(fix).partition("=")[2])


def _move_run_to(text: str, expression: str) -> str:
    """Return the script with its Run moved down to where the expression has a value, if that
    is safe.
    """
    source, place = _parse_script(text)
    if not _PATH.fullmatch(expression):
        raise FixRefused(f"{expression} is no name that can be written")
    root = re.split(r"[.\[]", expression)[0]
    if source.is_bound(root, place.call):
        return text
    behind = [
        each
        for each in source.assigned(root, place.function)
        if source.line(each) > source.line(place.call)
    ]
    if not behind:
        raise FixRefused(f"{root} has no value where Run is made, or not always")
    last = source.statement(min(behind, key=source.line))
    block = next(source.enclosing_nodes(place.statement))
    body = list(block.body) if isinstance(block, cst.Module | cst.IndentedBlock) else []
    if last not in body or not isinstance(place.statement, cst.SimpleStatementLine):
        raise FixRefused(
            f"Run is made before `{source.code(last).splitlines()[0]}`, "
            "and cannot be moved behind it"
        )
    between = body[body.index(place.statement) + 1 : body.index(last) + 1]
    uses = (each for one in between for each in _names(one, place.name))
    if not all(isinstance(each, cst.SimpleStatementLine) for each in between) or any(uses):
        raise FixRefused(
            f"Run is made before `{source.code(last).splitlines()[0]}`, and is used in between"
        )
    source.remove(place.statement)
    source.insert_after(last, source.code(place.statement))
    return source.text()


def _add_state_entry(source: ScriptSource, place: RunPlace, word: str, value: str) -> None:
    """Add an entry to the state mapping of the Run."""

    def change(call: cst.Call) -> cst.Call:
        for number, arg in enumerate(call.args):
            if keyword_of(arg) == "state" or (number == 1 and not keyword_of(arg)):
                return _with_state_entry(call, arg, word, value)
        raise FixRefused("this Run has no state mapping to add to")

    source.edit(place.call, change)


def _with_state_entry(call: cst.Call, arg: cst.Arg, word: str, value: str) -> cst.Call:
    """Return the call with one more entry in the mapping that this argument gives."""
    entered = arg.with_changes(value=with_entry(arg.value, word, value))
    return call.with_changes(args=[entered if each is arg else each for each in call.args])


# Variables
# --------------------------------------------------------------------------------------------------


def _restore_variable(source: ScriptSource, place: RunPlace, fix: Fix) -> None:
    """Restore a variable that the loop assigns.

    One that the module has when Run is made is tracked by its name. Any other becomes run.vars.NAME
    behind Run.
    """
    name = fix.names[0]
    function = _function_of_variable(source, place, fix)
    if function is None and place.function is not None:
        raise FixRefused(f"{name} is the module's, and Run is made in {place.function.name.value}")
    if function is None and source.is_bound(name, place.call):
        source.add_import("Fields")
        _add_state_entry(source, place, name, f'Fields(globals(), "{name}")')
        return
    same = place.function is function
    _require_plain(source, name, function, parameter=same)
    if same and any(
        isinstance(each, cst.For | cst.While) for each in source.enclosing_nodes(place.statement)
    ):
        raise FixRefused("Run is made inside a loop")
    users = _uses(source, name, function)
    if (
        fix.word
        and _changed_in_place(source, name, function, place)
        and source.is_bound(name, place.call)
    ):
        _add_state_entry(source, place, name, name)
        return
    inside = [each for each in users if not same or source.line(each) > place.after]
    if not inside or (function is None and len(inside) < len(users)):
        raise FixRefused(f"{name} is used before Run is made, and has no value there")
    source.make_run_global(place, inside)
    for each in inside:
        source.replace(each, f"{place.name}.vars.{name}")
    if same and function is not None and source.is_bound(name, place.call):
        source.edit(place.call, lambda call: _with_first_value(call, name))


def _function_of_variable(source: ScriptSource, place: RunPlace, fix: Fix) -> Function | None:
    """Return the function whose local the variable is; None: the module's."""
    if not fix.owner and not source.assigned(fix.names[0], place.function):
        return None
    if not fix.owner:
        return place.function
    found = [each for each in source.functions(fix.owner) if source.assigned(fix.names[0], each)]
    if len(found) != 1:
        raise FixRefused(f"{fix.names[0]} is no local of one function {fix.owner} in this script")
    return found[0]


def _parameters(function: Function) -> set[str]:
    params = function.params
    return {
        each.name.value for each in (*params.posonly_params, *params.params, *params.kwonly_params)
    }


def _require_plain(
    source: ScriptSource, name: str, function: Function | None, *, parameter: bool
) -> None:
    """Require that each place that binds the name can as well set an attribute."""
    scope = source.inner_scope(function)
    for call in source.calls(function):
        if isinstance(call.func, cst.Name) and call.func.value in _READS_NAMES:
            raise FixRefused(f"{name} may be looked at by {call.func.value}()")
    if function is not None and name in _parameters(function) and not parameter:
        raise FixRefused(f"{name} is a parameter of {function.name.value}")
    for bound in scope.assignments[name]:
        node = bound.node if isinstance(bound, metadata.Assignment) else None
        parents = [*source.enclosing_nodes(node)] if node is not None else []
        if not isinstance(node, cst.Name | cst.Param):
            raise FixRefused(f"{name} is bound in a way that is not followed")
        if (
            parents
            and isinstance(parents[0], cst.NamedExpr | cst.AsName)
            and not isinstance(parents[1], cst.WithItem)
        ):
            raise FixRefused(f"{name} is bound inside of an expression")
    for each in source.all:
        if isinstance(each, cst.Global | cst.Nonlocal) and any(
            item.name.value == name for item in each.names
        ):
            raise FixRefused(f"{name} is declared global or nonlocal")
        if isinstance(each, cst.Del) and any(True for _ in _names(each, name)):
            raise FixRefused(f"{name} is deleted")
        if (
            isinstance(each, cst.FormattedStringExpression)
            and each.equal
            and any(True for _ in _names(each, name))
        ):
            raise FixRefused(f"a string prints {name} with its own name")


def _uses(source: ScriptSource, name: str, function: Function | None) -> list[cst.Name]:
    """Return every place of the function,
    or of code inside of it, that reads or binds this variable.
    """
    scope = source.inner_scope(function)
    found: dict[cst.Name, None] = {}
    for assignment in scope.assignments[name]:
        if isinstance(assignment, metadata.Assignment) and isinstance(assignment.node, cst.Name):
            found[assignment.node] = None
        for access in assignment.references:
            if isinstance(access.node, cst.Name):
                found[access.node] = None
    for target in _names(
        source.module if function is None else function, name
    ):  # the target of `x += 1` is an access and an assignment
        if any(
            isinstance(each, cst.AugAssign) and each.target is target
            for each in source.enclosing_nodes(target)
        ):
            found[target] = None
    return list(found)


def _names(node: cst.CSTNode, name: str) -> Iterable[cst.Name]:
    return (
        each for each in iterate_nodes(node) if isinstance(each, cst.Name) and each.value == name
    )


def _changed_in_place(
    source: ScriptSource, name: str, function: Function | None, place: RunPlace
) -> bool:
    """Whether behind Run the name is bound by `x += 1` alone, which for an array writes into it."""
    behind = (each for each in source.assigned(name, function) if source.line(each) > place.after)
    augmented = {id(each.target) for each in source.all if isinstance(each, cst.AugAssign)}
    return place.function is function and all(id(each) in augmented for each in behind)


def _with_first_value(call: cst.Call, name: str) -> cst.Call:
    for arg in call.args:
        if keyword_of(arg) == "vars":
            return _with_state_entry(call, arg, name, name)
    return with_argument(call, "vars", f"dict({name}={name})")


# Loaders
# --------------------------------------------------------------------------------------------------


def _wrap_dataset(source: ScriptSource, place: RunPlace, fix: Fix) -> None:
    """Wrap the dataset of the loader that the run walks."""
    del fix
    loops.wrap_in_seeded(source, place)


def _walk_loader(source: ScriptSource, place: RunPlace, fix: Fix) -> None:
    if fix.names:
        loops.walk_iterators(source, place, fix.names)
    else:
        begin.walk_inner_loader(source, place)


def _exit_when_finished(source: ScriptSource, place: RunPlace, fix: Fix) -> None:
    """Let a start of the finished run end there, before the code behind the loop."""
    if any(keyword_of(arg) == "finished" for arg in place.call.args):
        raise FixRefused("the Run says finished= already")
    source.edit(place.call, lambda call: with_argument(call, "finished", f'"{fix.names[0]}"'))


def _walk_enumerated(source: ScriptSource, place: RunPlace, fix: Fix) -> None:
    loops.enumerate_batches(source, place, fix.names)


_KINDS: dict[str, Callable[[ScriptSource, RunPlace, Fix], None]] = {
    "track": _add_tracked,
    "fields": _add_fields,
    "vars": _restore_variable,
    "batches": _walk_loader,
    "enumerate": _walk_enumerated,
    "seeded": _wrap_dataset,
    "finished": _exit_when_finished,
}
