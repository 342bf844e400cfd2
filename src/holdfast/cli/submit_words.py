"""Submit's words: which belong to `holdfast submit`, which to sbatch, and which to the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from ..batch import sbatch
from ..batch.sbatch import Option
from ..errors import UsageError
from .defaults import read_defaults


class SubmitArguments(NamedTuple):
    """The words of the command line by destination."""

    ours: list[str]
    sbatch: list[Option]
    command: list[str]
    typed: Sequence[Option] = ()  # options of `sbatch` from the command line, not from a file


class SbatchPassThrough(click.Command):
    """A command that passes unknown options on to sbatch, and the words after `--` to the job."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {opt: str(param.name) for param in self.get_params(ctx) for opt in param.opts}
        named = {
            opt.removeprefix("--").replace("-", "_"): name
            for opt, name in known.items()
            if opt.startswith("--")
        }
        settings = read_defaults("submit", [*named, "sbatch"])
        given = settings.pop("sbatch", {})
        words = split_arguments(args, [*known])
        ctx.default_map = {named[opt]: value for opt, value in settings.items()}
        ctx.obj = words._replace(
            sbatch=sbatch.merge_options(options_from_table(given), words.sbatch), typed=words.sbatch
        )
        return super().parse_args(ctx, words.ours)


def split_arguments(args: list[str], known: list[str]) -> SubmitArguments:
    """Split `args` into our options, sbatch's, and the command after the first `--`."""
    end = args.index("--") if "--" in args else len(args)
    ours: list[str] = []
    theirs: list[str] = []
    target = theirs
    for word in args[:end]:
        if word.startswith("-") and word != "-":
            target = ours if word.partition("=")[0] in known else theirs
        target.append(word)
    try:
        return SubmitArguments(ours, sbatch.parse_options(theirs), args[end + 1 :])
    except UsageError as error:
        raise UsageError(f"{error}; what shall run stands after --") from error


def options_from_table(given: Any) -> list[Option]:
    """Return sbatch options from holdfast.toml: `requeue = true`, `time = "12:00:00"`; `false`
    leaves one out.

    Raises:
        UsageError: `given` is no table.
    """
    if not isinstance(given, Mapping):
        raise UsageError(
            "submit.sbatch is no table: write [submit.sbatch] and a line for each option"
        )
    words = [f"{'-' if len(name) == 1 else '--'}{name}" for name in given]
    return [
        option._replace(value=None if value is True else str(value))
        for word, value in zip(words, given.values(), strict=True)
        if value is not False
        for option in sbatch.parse_options([word])
    ]
