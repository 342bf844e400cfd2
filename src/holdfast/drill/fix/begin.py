"""Begin: gives a script that knows nothing of Holdfast its Run, its import and its loops. Pure.

The training loop is found by what it does: `loss.backward()` or JAX's like, or a call of a function
that does it. In a script without that the run walks the heaviest outermost loop.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import libcst as cst

from . import loops
from .source import FixRefused, Function, RunPlace, ScriptSource, iterate_nodes

Loop = cst.For | cst.While
# torch's, optax's and Equinox's, Flax's and Keras's
_TRAINS = ("backward", "apply_updates", "apply_gradients")
_STATEFUL = (
    "parameters",
    "state_dict",
    "load_state_dict",
    "zero_grad",
    "named_parameters",
    "train",
    "eval",
)
_MAKES_STATEFUL = re.compile(
    r"(^|\.)(optim|lr_scheduler)\.[A-Z]\w*$|(LR|Scheduler|GradScaler|AveragedModel)$"
)


def add_run(text: str, stem: str, *, batches: bool = True, untracked: Collection[str] = ()) -> str:
    """Return the script with a Run around its training; unchanged if it has one.

    `batches`: let the run walk the loader inside the outermost loop, too, so that it can stop
    within an epoch. `untracked`: names that stay out of its state.

    Raises:
        Refused: its training loop is not found, or has a form that cannot be walked.
    """
    source = ScriptSource(text)
    if source.find_run() is not None:
        return text
    outer = _find_training_loop(source)
    inner = _loader_loop(source, outer) if batches else None
    function = source.function(outer)
    run = next(
        name for name in ("run", "survivor", "holdfast_run") if not _is_name_taken(source, name)
    )
    state = ", ".join(
        f"{word}={each}"
        for word, each in _find_state(source, outer, function).items()
        if word not in untracked
    )
    lines = [f'{run} = Run("runs/{stem}", dict({state})).start()']
    if inner is not None and function is not None and function not in source.enclosing_nodes(inner):
        lines.insert(0, f"global {run}")
    loops.walk_outermost(source, outer, run, inside=inner is not None)
    source.insert_before(outer, *lines)
    if inner is not None:
        loops.walk_batches(source, inner.iter, run)
    source.add_import("Run")
    return source.text()


def _is_name_taken(source: ScriptSource, name: str) -> bool:
    """Whether a variable or function of the script has this name. Attributes and methods do
    not count.
    """
    for each in source.all:
        if isinstance(each, cst.Name) and each.value == name:
            parent, *outer = source.enclosing_nodes(each)
            method = isinstance(parent, Function) and isinstance(outer[1], cst.ClassDef)
            if not method and not (isinstance(parent, cst.Attribute) and parent.attr is each):
                return True
    return False


class TrainingCode:
    """Finds the functions and loops of a script that train, by themselves or in functions
    that they call.
    """

    def __init__(self, source: ScriptSource) -> None:
        self._source = source
        self.functions = [each for each in source.all if isinstance(each, Function)]
        names = {each.name.value for each in self.functions if _trains_itself(each)}
        while more := {
            each.name.value
            for each in self.functions
            if each.name.value not in names
            and any(called in names for called in called_names(each))
        }:
            names |= more
        self.names = names

    def trains(self, loop: Loop) -> bool:
        return _trains_itself(loop.body) or any(
            name in self.names for name in called_names(loop.body)
        )


def _trains_itself(node: cst.CSTNode) -> bool:
    return any(loops.is_call(each, *_TRAINS) for each in iterate_nodes(node))


def called_names(node: cst.CSTNode) -> Iterator[str]:
    """Yield the names of functions and own methods that the code calls."""
    for each in iterate_nodes(node):
        func = each.func if isinstance(each, cst.Call) else None
        if isinstance(func, cst.Name):
            yield func.value
        elif (
            isinstance(func, cst.Attribute)
            and isinstance(func.value, cst.Name)
            and func.value.value == "self"
        ):
            yield func.attr.value


def _find_training_loop(source: ScriptSource) -> Loop:
    """Return the outermost loop that trains; without one,
    the heaviest loop that no other loop contains.
    """
    training = TrainingCode(source)
    every = [
        each
        for each in source.all
        if isinstance(each, cst.For | cst.While) and not _yields_to_caller(each)
    ]
    found = [each for each in every if training.trains(each)] or every
    inside = {name for each in found for name in _all_called(source, each.body)}

    def is_inside(loop: Loop) -> bool:
        around = [*source.enclosing_nodes(loop)]
        function = source.function(loop)
        within_another = any(each in found for each in around)
        return within_another or (function is not None and function.name.value in inside)

    outer = [each for each in found if not is_inside(each)]
    if not outer:
        raise FixRefused("no training loop was found in this file")
    return max(outer, key=lambda each: sum(1 for _ in iterate_nodes(each)))


def _yields_to_caller(loop: Loop) -> bool:
    """Whether the loop yields data to another loop."""
    return any(isinstance(each, cst.Yield) for each in iterate_nodes(loop.body))


def _all_called(source: ScriptSource, node: cst.CSTNode) -> set[str]:
    names, new = set[str](), {*called_names(node)}
    while new:
        names |= new
        new = {
            called
            for name in new
            for each in source.functions(name)
            for called in called_names(each.body)
        } - names
    return names


def _loader_loop(source: ScriptSource, outer: Loop) -> cst.For | None:
    """Return the loop over batches in the outermost loop, or in a function that it calls; None:
    none is safe to walk.

    A loop over numbers counts only if its own body trains and zeroes the gradients: others are
    groups of parts of a step, or passes over one set of data.
    """
    if isinstance(outer, cst.While):
        return None
    training = TrainingCode(source)
    called = [
        each for name in sorted(_all_called(source, outer.body)) for each in source.functions(name)
    ]
    for block in (outer.body, *(each.body for each in called)):
        for each in iterate_nodes(block):
            if not isinstance(each, cst.For) or not training.trains(each):
                continue
            if any(
                isinstance(one, cst.For | cst.While) and one is not outer
                for one in source.enclosing_nodes(each)
            ):
                continue  # its data are walked more than once in an epoch
            if not loops.is_range(each.iter) or _is_a_step(each, training):
                return each
    return None


def _is_a_step(loop: cst.For, training: TrainingCode) -> bool:
    """Whether each pass of a loop over numbers is a whole step."""
    deeper = any(
        isinstance(each, cst.For | cst.While) and training.trains(each)
        for each in iterate_nodes(loop.body)
    )
    return (
        _trains_itself(loop.body)
        and not deeper
        and any(loops.is_call(each, "zero_grad") for each in iterate_nodes(loop))
    )


def walk_inner_loader(source: ScriptSource, place: RunPlace) -> None:
    """Let the run walk the loader inside the outermost loop that it walks already."""
    walked = (f"{place.name}.epochs", f"{place.name}.steps")
    for each in source.all:
        if isinstance(each, cst.For) and any(
            source.code(call.func) in walked for call in source.calls(each.iter)
        ):
            inner = _loader_loop(source, each)
            if inner is not None and place.name not in source.code(inner.iter):
                source.make_run_global(place, [inner])
                loops.walk_batches(source, inner.iter, place.name)
                return
    raise FixRefused("no loop over a loader was found inside the loop that the run walks")


def _find_state(source: ScriptSource, outer: Loop, function: Function | None) -> dict[str, str]:
    """Return objects that are surely part of the state and exist before the loop:
    word -> expression.
    """
    found: dict[str, None] = {}
    for each in source.all:
        if not isinstance(each, cst.Call):
            continue
        if isinstance(each.func, cst.Attribute) and each.func.attr.value in _STATEFUL:
            found[source.code(each.func.value)] = None
        elif _MAKES_STATEFUL.search(source.code(each.func)) or any(
            loops.is_call(arg.value, "parameters") for arg in each.args
        ):
            assigns = next(
                (
                    one
                    for one in source.enclosing_nodes(each)
                    if isinstance(one, cst.BaseSmallStatement)
                ),
                None,
            )
            if (
                isinstance(assigns, cst.Assign)
                and assigns.value is each
                and len(assigns.targets) == 1
            ):
                found[source.code(assigns.targets[0].target)] = None
    return {
        expression.removeprefix("self.").replace(".", "_"): expression
        for expression in found
        if re.fullmatch(r"(self\.)?[A-Za-z_]\w*", expression)
        and _has_value_at_loop(source, expression, function, outer)
    }


def _has_value_at_loop(
    source: ScriptSource, expression: str, function: Function | None, outer: Loop
) -> bool:
    """Whether the expression surely has a value at the loop: a line that always runs binds
    or uses it.
    """
    root = expression.partition(".")[0]
    own = source.assigned(root, function) or (
        source.assigned(root, None) if function is not None else []
    )
    if not own or not all(isinstance(each, cst.Name | cst.Param) for each in own):
        return False
    if any(
        isinstance(next(source.enclosing_nodes(each), None), cst.For | cst.CompFor) for each in own
    ):
        return False
    return source.is_bound(root, outer)
