"""Loops: lets a run walk a script's loops: over epochs, over steps, over a loader. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import libcst as cst

from .source import FixRefused, RunPlace, ScriptSource, iterate_nodes, keyword_of

_BARS = ("tqdm", "track", "progress_bar", "tqdm_notebook")


def is_call(node: cst.CSTNode, *names: str) -> TypeGuard[cst.Call]:
    """Whether it is a call of a function with one of these names, wherever that comes from."""
    if not isinstance(node, cst.Call):
        return False
    name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
    return isinstance(name, cst.Name) and name.value in names


def without_progress_bar(iterable: cst.BaseExpression) -> cst.BaseExpression:
    """Return the iterable inside a progress bar's call; return anything else unchanged."""
    while is_call(iterable, *_BARS) and iterable.args:
        iterable = iterable.args[0].value
    return iterable


def is_range(iterable: cst.BaseExpression) -> bool:
    inner = without_progress_bar(iterable)
    if is_call(inner, "enumerate") and inner.args:
        inner = without_progress_bar(inner.args[0].value)
    return is_call(inner, "range", "trange", "reversed", "arange")


def walk_batches(source: ScriptSource, iterable: cst.BaseExpression, run: str) -> None:
    """Let the run serve a loop's iterable: `run.batches(loader)`,
    `run.enumerate(loader)`, with a bar around it.
    """
    inner = without_progress_bar(iterable)
    if is_call(inner, "enumerate") and inner.args:
        loader, bar = without_progress_bar(inner.args[0].value), inner.args[0].value
        if bar is loader:
            source.replace(inner.func, f"{run}.enumerate")
            _side_by_side(source, loader)
            return
        counted = ", ".join([source.code(loader), *(source.code(arg) for arg in inner.args[1:])])
        changed = source.code(bar).replace(source.code(loader), f"{run}.enumerate({counted})", 1)
        source.replace(inner, changed)
        return
    _side_by_side(source, inner)
    source.wrap(inner, f"{run}.batches(")


def _side_by_side(source: ScriptSource, loader: cst.BaseExpression) -> None:
    if is_call(loader, "zip"):
        source.add_import("Zip", "holdfast.data")
        source.replace(loader.func, "Zip")


def walk_outermost(
    source: ScriptSource, loop: cst.For | cst.While, run: str, *, inside: bool
) -> None:
    """Let the run walk the outermost loop. `inside`: it walks a loader in it, too."""
    if isinstance(loop, cst.While):
        _walk_while(source, loop, run)
        return
    inner = without_progress_bar(loop.iter)
    if not is_call(inner, "range") or len(inner.args) == 3:
        walk_batches(source, loop.iter, run)
        return
    first = source.code(inner.args[0].value)
    if len(inner.args) == 1 or first == "0":
        total = source.code(inner.args[-1].value)
        source.replace(inner, f"{run}.epochs({total})" if inside else f"{run}.steps({total})")
    else:
        source.wrap(inner, f"{run}.epochs(")


def _walk_while(source: ScriptSource, loop: cst.While, run: str) -> None:
    """`while test:` becomes `for _ in run.steps():`, which is left where the test fails."""
    if loop.orelse is not None:
        raise FixRefused("the outermost loop is a `while` with an `else`")
    head = cst.For(cst.Name("_"), cst.parse_expression(f"{run}.steps()"), loop.body)
    always = source.code(loop.test) in ("True", "1")
    leave = cst.parse_statement("if not (x):\n    break\n", source.module.config_for_parsing)

    def change(updated: cst.While) -> cst.For:
        body = updated.body
        if not always and isinstance(leave, cst.If) and isinstance(body, cst.IndentedBlock):
            test = cst.parse_expression(f"not ({source.module.code_for_node(updated.test)})")
            body = body.with_changes(body=[leave.with_changes(test=test), *body.body])
        return head.with_changes(body=body, leading_lines=updated.leading_lines)

    if not always and not isinstance(loop.body, cst.IndentedBlock):
        raise FixRefused("the outermost loop is a `while` on one line")
    source.edit(loop, change)


def walk_iterators(source: ScriptSource, place: RunPlace, names: Sequence[str]) -> None:
    """Let run.batches walk what these iterators walk."""
    for name in names:
        loops = [
            each
            for each in source.all
            if isinstance(each, cst.For) and source.code(without_progress_bar(each.iter)) == name
        ]
        if len(loops) != 1:
            raise FixRefused(
                f"{name} is walked by {len(loops)} `for` loops, and by next() elsewhere"
            )
        source.make_run_global(place, loops)
        walk_batches(source, loops[0].iter, place.name)


def enumerate_batches(source: ScriptSource, place: RunPlace, names: Sequence[str]) -> None:
    """`enumerate(run.batches(loader))` becomes `run.enumerate(loader)`."""
    for loop in source.all:
        if not isinstance(loop, cst.For) or not {*names} & {
            source.code(each) for each in iterate_nodes(loop.target)
        }:
            continue
        for call in source.calls(loop.iter):
            inner = call.args[0].value if is_call(call, "enumerate") and call.args else call
            if (
                isinstance(inner, cst.Call)
                and inner is not call
                and source.code(inner.func) == f"{place.name}.batches"
            ):
                start = [source.code(arg.value) for arg in call.args[1:2]]
                given = [
                    *(source.code(arg).rstrip(", ") for arg in inner.args),
                    *(f"start={each}" for each in start),
                ]
                source.replace(call, f"{place.name}.enumerate({', '.join(given)})")
                return
    raise FixRefused(f"{', '.join(names)} is not counted by enumerate(run.batches(...))")


def wrap_in_seeded(source: ScriptSource, place: RunPlace) -> None:
    """Wrap the dataset of the DataLoader that the run walks."""
    made = [each for each in source.calls() if is_call(each, "DataLoader") and each.args]
    walked = {
        source.code(call.args[0].value)
        for call in source.calls()
        if source.code(call.func) in (f"{place.name}.batches", f"{place.name}.enumerate")
        and call.args
    }

    def named(call: cst.Call) -> set[str]:
        targets = (
            each.targets for each in source.enclosing_nodes(call) if isinstance(each, cst.Assign)
        )
        return {source.code(target.target) for each in targets for target in each}

    found = [each for each in made if named(each) & walked] or made
    if len(found) != 1:
        raise FixRefused(
            f"there are {len(found)} DataLoaders: which one the run walks is not plain"
        )
    dataset = next((arg for arg in found[0].args if keyword_of(arg) == "dataset"), found[0].args[0])
    if is_call(dataset.value, "Seeded"):
        raise FixRefused("the dataset is Seeded already")
    source.add_import("Seeded")
    source.wrap(dataset.value, "Seeded(", ", seed=0)")
