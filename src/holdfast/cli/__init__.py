"""The command line: `holdfast COMMAND`. A command's module is imported when it is called, so that help is quick.

Completion for bash (zsh and fish likewise): eval "$(_HOLDFAST_COMPLETE=bash_source holdfast)"
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any, NoReturn

import click

from ..errors import HoldfastError

# name -> what it does in a line; its module has the same name, but for those in HOMES
COMMANDS = {
    "copy": "Copy checkpoints, whole and verified, to a folder or another place.",
    "demo": "Train a small network, kill it, and compare every bit.",
    "diff": "Tell in what two checkpoints differ.",
    "doctor": "Tell whether this file system and this cluster will do.",
    "drill": "Kill a run on purpose, and prove that it resumes exactly.",
    "export": "Write a checkpoint's tensors as .safetensors, .npz or .pt.",
    "hold": "Do not restart or requeue a run.",
    "init": "Give a script its Run, and prove each line of it.",
    "lint": "Find what a Slurm batch script does wrong.",
    "ls": "List a run's checkpoints.",
    "pin": "Keep a checkpoint for ever.",
    "prune": "Remove the checkpoints that a rule does not keep.",
    "release": "Allow a held run to be restarted and requeued.",
    "run": "Keep a command going: signals, restarts, requeues.",
    "show": "Show what a checkpoint holds and where it came from.",
    "status": "Tell what became of runs, and what to type next.",
    "submit": "Submit a command to Slurm, so that it goes on until it is done.",
    "unpin": "Let the rules remove a checkpoint again.",
    "verify": "Read every byte and tell what is damaged.",
}
HOMES = {"unpin": "pin", "release": "hold"}
MODULES = {name: f"holdfast.cli.{HOMES.get(name, name)}" for name in COMMANDS}
BROKEN_PIPE = 141  # a shell's exit code for a program that SIGPIPE ended
INTERRUPTED = 130


class Commands(click.Group):
    """Finds commands by name, and turns what they raise into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(MODULES[cmd_name])
        command: click.Command = getattr(module, cmd_name if cmd_name in HOMES else "command")
        command.name = cmd_name  # not its function's name: the documentation takes its headings from here
        command.short_help = COMMANDS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            sys.stdout = io.StringIO()  # the interpreter flushes once more when it exits
            return BROKEN_PIPE

    def main(self, args: Any = None, prog_name: str | None = None, *_: Any, **extra: Any) -> NoReturn:
        sys.exit(self._code(args, prog_name or "holdfast", extra | {"standalone_mode": False}))

    def _code(self, args: Any, prog_name: str, extra: dict[str, Any]) -> int:
        try:
            return int(super().main(args, prog_name, **extra) or 0)
        except click.UsageError as error:
            program = error.ctx.command_path if error.ctx else prog_name
            return told(f"{error.format_message().rstrip('.')}; see {program} --help", error.exit_code)
        except click.ClickException as error:
            return told(error.format_message(), error.exit_code)
        except click.Abort:
            return told("interrupted", INTERRUPTED)
        except HoldfastError as error:
            return told(str(error), error.exit_code)
        except OSError as error:
            return told(spelled(error), 1)
        except MemoryError:
            return told("this needs more memory than there is; call it on a machine, or in a job, with more", 1)


def told(line: str, code: int) -> int:
    """Print the message on stderr, without passwords in addresses; return the exit code."""
    from .formatting import safe, without_passwords  # imported late: help does not need it

    click.echo(f"holdfast: {safe(without_passwords(line))}", err=True)
    return code


def spelled(error: OSError) -> str:
    """Return the system's message and the file that it is about."""
    why = error.strerror or str(error) or type(error).__name__
    return f"{os.fsdecode(error.filename)}: {why}" if isinstance(error.filename, str | bytes | os.PathLike) else why


@click.command(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast", message="holdfast %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Look at runs and tend them. RUN is a run's directory, a checkpoint's, or a copy of either. The directory of a
    submission or a supervisor stands for its run. ls, show, verify, diff and export also read what other programs
    wrote: .pt, safetensors, Hugging Face, DCP, Orbax, Keras.

    Exit codes: 0 done, 1 failed or different, 2 wrong use, 3 not found, 4 damaged, 6 the scheduler refused, 7 no space.
    8 the command failed for good, 9 superseded, 11 a script loses work, 12 unreadable now, 75 stopped: run me again.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)


def main() -> NoReturn:
    """The entry point of the `holdfast` script."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character gets its escape instead
    commands.main()
