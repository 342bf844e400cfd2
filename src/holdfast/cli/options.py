"""Options that several commands take."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from ..errors import UsageError
from ..store.locate import parse_step


class RunPath(click.ParamType):
    """A directory; whether it is one of ours, `locate` tells, with its own exit code."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del ctx, param
        return [CompletionItem(incomplete, type="dir")]


class StepNumber(click.ParamType):
    name = "step"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if isinstance(value, int):
            return value
        try:
            return parse_step(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


run = click.argument("run", metavar="RUN", type=RunPath())
step = click.option("--step", metavar="N", type=StepNumber(), help="The step (or best, or a name). Default: the newest.")
needed_step = click.option("--step", metavar="N", type=StepNumber(), required=True, help="The step (or best, or a name).")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
everything = click.option("--all", "everything", is_flag=True, help="Leave nothing out of a long list.")
