"""`holdfast diff`: the differences between two checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from ..errors import HoldfastError
from ..inspect.alignment import PrefixPair
from ..inspect.diff import Difference, align_tensors, compare, compared_places
from ..legible import counted
from ..store.checkpoint import Checkpoint
from ..store.locate import retry_if_removed
from . import options, print_error, system_error_text
from .formatting import limit_lines, print_report, showing_progress
from .sources import open_source

MOST = 30  # differences, unless --all
_WORDS = {True: ("leaf", "leaves"), False: ("tensor", "tensors")}
TROUBLE = 2  # as diff(1): 1 means different


@click.command()
@click.argument("a", metavar="A", shell_complete=options.complete_directories)
@click.argument("b", metavar="B", shell_complete=options.complete_directories)
@click.option(
    "--exempt",
    metavar="PLACE",
    multiple=True,
    help="Leave this leaf or part out; * stands for any text.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Trust the recorded digests; read only the leaves whose digests differ.",
)
@options.everything
@options.as_json
def command(
    a: str, b: str, exempt: tuple[str, ...], quick: bool, everything: bool, as_json: bool
) -> int:
    """Compare two checkpoints bit for bit. A and B are each a RUN (its newest), RUN@STEP, or a
    checkpoint's directory.

    Exit 0 when they are identical, 1 when they differ, more when that could not be told.
    """
    try:
        (path_a, step_a), (path_b, step_b) = options.split_step(a), options.split_step(b)
        with (
            showing_progress() as tell,
            open_source(path_a, tell, foreign=True) as in_a,
            open_source(path_b, tell, foreign=True) as in_b,
        ):

            def compared() -> tuple[Checkpoint, Checkpoint, list[Difference]]:
                first, second = in_a.locate().select(step_a), in_b.locate().select(step_b)
                in_a.fetch_files(first)
                in_b.fetch_files(second)
                return first, second, compare(first, second, exempt, read=not quick)

            first, second, found = retry_if_removed(compared)
            tell("")
            names = align_tensors(first, second)
            facts = {
                "a": str(first.path),
                "b": str(second.path),
                "identical": not found,
                "exempt": exempt,
            }
            lines = [
                f"a: {first.path} ({first.name})",
                f"b: {second.path} ({second.name})",
                *([f"left out: {', '.join(exempt)}"] if exempt else []),
                *([_describe_scope(names.pairs)] if names else []),
                *limit_lines(found, None if everything else MOST),
                *_explain_differences(found),
            ]
            places = compared_places(first, second, exempt, names)
            lines.append(_summary(places, {each.where for each in found}, *_WORDS[names is None]))
            print_report(
                facts
                | {"by_name": names and names.pairs, "differences": [*map(_difference, found)]},
                lines,
                as_json=as_json,
            )
    except HoldfastError as error:
        return print_error(str(error), max(error.exit_code, TROUBLE))
    except OSError as error:
        return print_error(system_error_text(error), TROUBLE)
    return 1 if found else 0


def _summary(places: set[str], differing: set[str], one: str, many: str) -> str:
    """Say in one line how many of the compared places differ."""
    of, told, rest = len(places), len(places & differing), len(differing - places)
    if not differing:
        return f"identical: {counted(of, one, many)}"
    beside = f" and {counted(rest, 'other place')}" if rest else ""
    return f"{told:,} of {counted(of, one, many)}{beside} differ{'s' * (told == 1 > rest)}"


def _describe_scope(names: Sequence[PrefixPair]) -> str:
    """Say which tensors were compared, when that is not everything."""
    pairs = [f"{each.a or 'all'} of a with {each.b or 'all'} of b" for each in names]
    return f"compared: only tensors, by their names: {', '.join(pairs)}"


def _explain_differences(found: list[Difference]) -> Iterator[str]:
    """Yield explanations of differences that are hard to read by themselves."""
    if any(each.where.startswith("@") for each in found):
        yield ("@1/...: what rank 1 has of its own, where several ranks saved")
    if found and all(each.kind == "rng" for each in found):
        sources = sorted({each.where.rpartition("/")[2] for each in found})
        words = " ".join(f"--exempt '*rng/{source}'" for source in sources)
        yield (
            "everything else is identical. A generator that nobody seeds differs from run to run;"
        )
        yield f"to leave it out: {words}"


def _difference(each: Difference) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "where": each.where,
        "area": each.area,
        "kind": each.kind,
        "what": each.what,
    }
    return facts | (each.distance._asdict() if each.distance else {})
