"""Arguments and options that several commands take."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from .. import scan
from ..cluster import job_leader
from ..errors import HoldfastError, NotFound, UsageError
from ..store.checkpoint import Checkpoint
from ..store.locate import Location, Step, locate, parse_step


def complete_directories(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return completions for a RUN;
    `locate` checks later whether it is one, with its own exit code.
    """
    del ctx, param
    return [CompletionItem(incomplete, type="dir")]


def _complete_step(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return completions for a step: those of the run before it."""
    del param
    words = [word for word in ctx.args if not word.startswith("-")]  # click has not parsed them
    run = ctx.params.get("run") or next(iter(words), None)
    return [CompletionItem(each) for each in _step_names(run, incomplete)]


def _complete_run_or_step(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return completions for RUN@STEP: a directory, and behind the @ the run's steps."""
    run, at, begin = incomplete.rpartition("@")
    if not at:
        return complete_directories(ctx, param, incomplete)
    return [CompletionItem(f"{run}@{each}") for each in _step_names(run, begin)]


def _step_names(run: str | None, begin: str) -> list[str]:
    try:
        names = [each.name for each in locate(run).checkpoints()] if run else []
    except (HoldfastError, OSError):
        names = []
    return [each for each in ["best", "latest", *reversed(names)] if each.startswith(begin)]


def typed_options(ctx: click.Context, *without: str) -> list[str]:
    """Return the options that the user gave, as words, but for the parameters in `without`."""
    words: list[str] = []
    for each in ctx.command.params:
        name = each.name or ""
        given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if not given or name in without or not isinstance(each, click.Option):
            continue
        value = ctx.params[name]
        if each.is_flag:
            words += each.opts[:1] if value else each.secondary_opts[:1]
        else:
            words += [each.opts[0], str(value)]
    return words


def require_local_path(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Require a local path for RUN.

    Raises:
        UsageError: RUN is the address of a place, and the command takes none.
    """
    if value is not None and "://" in value:
        raise UsageError(
            f"{value}: is an address, which only ls, show, verify, diff, export and copy take"
        )
    return _without_step(ctx, param, value)


def _without_step(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Require that RUN names no step.

    Raises:
        UsageError: it is RUN@STEP, and the command takes a whole run.
    """
    del param
    run, step = (value, None) if value is None else split_step(value)
    if step is not None:
        raise UsageError(
            f"{value}: {ctx.info_name} takes a whole run, {run}; "
            f"holdfast show {value} shows one step"
        )
    return value


def split_step(text: str) -> tuple[str, Step]:
    """Return the run, and the step, of RUN or RUN@STEP."""
    run, at, step = text.rpartition("@")
    if (
        not at
        or scan.lexists(text)
        or ("://" in text and ("/" in step or "/" not in run.partition("://")[2]))
    ):
        return text, None  # sftp://user@host/run
    return run, parse_step(step)


_ONCE = "RUN@STEP and --step: give the step once"


def _run_at(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Take RUN@STEP apart. `_step` returns the step: without --step it is called later."""
    del param
    run, at = split_step(value)
    if at is not None and ctx.params.get("step") is not None:
        raise click.UsageError(_ONCE, ctx)
    ctx.meta["step"] = at
    return run


def _run_here_at(ctx: click.Context, param: click.Parameter, value: str) -> str | None:
    return require_local_path(ctx, param, _run_at(ctx, param, value))


def _step(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    at: int | str | None = ctx.meta.get("step")
    if value is None:
        return at
    if at is not None:
        raise click.UsageError(_ONCE, ctx)
    try:
        return parse_step(value)
    except UsageError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _needed_step(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    step = _step(ctx, param, value)
    if step is None and not ctx.resilient_parsing:  # else the shell asks for completions
        raise click.UsageError("which checkpoint? Write RUN@STEP, or --step N", ctx)
    return step


_STEP = "The step: a number, best, or a checkpoint's name."

option = functools.partial(click.option, show_default=True)
run = click.argument(
    "run", metavar="RUN", callback=_without_step, shell_complete=complete_directories
)
_at = functools.partial(
    click.argument, "run", metavar="RUN[@STEP]", shell_complete=_complete_run_or_step
)
run_at, run_here_at = _at(callback=_run_at), _at(callback=_run_here_at)
run_here = click.argument(
    "run", metavar="RUN", callback=require_local_path, shell_complete=complete_directories
)
runs_here = click.argument(
    "path",
    metavar="[RUN]",
    default=".",
    callback=require_local_path,
    shell_complete=complete_directories,
)
_step_option = functools.partial(click.option, "--step", metavar="N", shell_complete=_complete_step)
step = _step_option(callback=_step, help=f"{_STEP} Default: the newest.")
needed_step = _step_option(callback=_needed_step, help=f"{_STEP} Or write RUN@STEP.")
rank = click.option(
    "--rank",
    metavar="R",
    type=click.IntRange(min=0),
    help="As that rank saved it, where several did. Default: 0.",
)
drill_seed = option(
    "--seed", type=int, metavar="N", default=0, help="Decides when and what is killed and damaged."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
everything = click.option(
    "--all", "everything", is_flag=True, help="Leave nothing out of a long list."
)


def locate_run(run: str) -> Location:
    """Return what RUN is; a supervisor's or a submission's directory stands for its run.

    Raises:
        NotFound: it is none of these; where `holdfast status` knows runs, that is named.
    """
    try:
        return locate(job_leader.reported_run_path(Path(run)) or run)
    except NotFound as error:
        from ..supervise import status

        try:
            status.find_runs(Path(run))
        except NotFound:
            raise error from None
        raise NotFound(
            f"{error}; to see what became of the jobs there: holdfast status {shlex.quote(run)}"
        ) from None


def view_as_rank(checkpoint: Checkpoint, wanted: int | None) -> Checkpoint:
    """Return `checkpoint` as that rank saved it; rank 0 if `wanted` is None.

    Raises:
        UsageError: there was no such rank.
    """
    if wanted is not None and wanted >= checkpoint.world:
        ranks = (
            f"ranks 0 to {checkpoint.world - 1}"
            if checkpoint.world > 1
            else "one process, which is rank 0"
        )
        raise UsageError(f"{checkpoint.path}: no rank {wanted}; it was saved by {ranks}")
    return checkpoint.as_rank(wanted or 0)
