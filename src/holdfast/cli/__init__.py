"""The command line: `holdfast COMMAND`. A command's module is imported when it is called, so that
help is quick.

Completion for bash (zsh and fish likewise): eval "$(_HOLDFAST_COMPLETE=bash_source holdfast)"
"""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
from itertools import takewhile
from typing import Any, NoReturn

import click

from ..errors import HoldfastError

# name -> what it does in a line; its module has the same name, but for those in HOMES
COMMANDS = {
    "run": "Keep a command going: signals, restarts, requeues.",
    "submit": "Submit a command to Slurm, so that it goes on until it is done.",
    "hold": "Do not restart or requeue a run.",
    "release": "Allow a held run to be restarted and requeued.",
    "ls": "List a run's checkpoints.",
    "show": "Show what a checkpoint holds and where it came from.",
    "status": "Tell what became of runs, and what to type next.",
    "watch": "Show runs while they are at work.",
    "report": "Tell where a run's time went, in text or on one page.",
    "diff": "Tell in what two checkpoints differ.",
    "verify": "Read every byte and tell what is damaged.",
    "prune": "Remove the checkpoints that a rule does not keep.",
    "pin": "Keep a checkpoint for ever.",
    "unpin": "Let the rules remove a checkpoint again.",
    "export": "Write a checkpoint's tensors as .safetensors, .npz or .pt.",
    "copy": "Copy checkpoints, whole and verified, to a folder or another place.",
    "drill": "Kill a run on purpose, and prove that it resumes exactly.",
    "init": "Give a script its Run, and prove each line of it.",
    "lint": "Find what a Slurm batch script does wrong.",
    "doctor": "Tell whether this file system and this cluster will do.",
    "demo": "Train a small network, kill it, and compare every bit.",
}
GROUPS = {  # of the help
    "Run": "run submit hold release",
    "Look": "ls show status watch report diff verify",
    "Keep": "prune pin unpin export copy",
    "Check": "drill init lint doctor demo",
}
EXAMPLES = """
run -- python train.py
run --app gromacs -- gmx mdrun -deffnm md
submit --time 3:00:00 --gpus 1 -- python train.py
submit --array 1-20 -- python train.py --seed {task}
hold runs/first
hold .holdfast/train-1
release runs/first
release .holdfast/train-1
ls runs/first
ls runs/first --attempts
show runs/first
show runs/first --step best
status
status runs/first --json
watch
watch runs/first
report runs/first
report runs/first --html report.html
diff runs/first runs/second
diff runs/first/checkpoints/step-000000010 runs/first
verify runs/first
verify runs/first --step 10 --cold
prune runs/first --keep last=3 --dry-run
prune runs/first --keep last=3,best=loss:min
pin runs/first --step 1000
pin runs/first --step best
unpin runs/first --step 1000
unpin runs/first --step best
export runs/first -o model.safetensors
export runs/first --step best --part model -o model.pt
copy runs/first /backup/first
copy runs/first s3://bucket/first --all
drill -- python train.py
drill --steps 200 --kills 3 --fix -- python train.py
init -- python train.py
init --write -- python train.py
lint job.sh
lint --run runs/first job.sh
doctor
doctor runs/first --partition gpu
demo
demo --keep demo
"""
# what people type -> the command that does it
OTHER_WORDS = {
    **dict.fromkeys(["list", "dir", "checkpoints"], "ls"),
    **dict.fromkeys(["cat", "info", "inspect", "log", "metrics"], "show"),
    **dict.fromkeys(["rm", "remove", "delete", "clean", "gc"], "prune"),
    **dict.fromkeys(["check", "fsck", "validate"], "verify"),
    **dict.fromkeys(["watch", "queue", "top", "squeue"], "status"),
    **dict.fromkeys(["compare", "cmp"], "diff"),
    **dict.fromkeys(["sbatch", "launch"], "submit"),
    **dict.fromkeys(["save", "convert", "dump"], "export"),
    **dict.fromkeys(["start", "resume", "restart", "supervise"], "run"),
    **dict.fromkeys(["kill", "test", "prove"], "drill"),
    **dict.fromkeys(["stop", "pause", "cancel"], "hold"),
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
        # not its function's name: the documentation takes its headings from here
        command.name = cmd_name
        command.short_help = COMMANDS[cmd_name]
        examples = re.findall(rf"^{cmd_name}(?: .*)?$", EXAMPLES, re.MULTILINE)
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  holdfast {each}" for each in examples)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        for group, names in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, COMMANDS[name]) for name in names.split()], col_max=10)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            names = [*COMMANDS, *OTHER_WORDS]
            close = difflib.get_close_matches(args[0], names, n=1, cutoff=0.5)
            close = [OTHER_WORDS.get(name, name) for name in close]
            ctx.fail(
                f"there is no command {args[0]!r}{f': did you mean {close[0]}?' if close else ''}"
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            sys.stdout = io.StringIO()  # the interpreter flushes once more when it exits
            return BROKEN_PIPE

    def main(
        self, args: Any = None, prog_name: str | None = None, *_: Any, **extra: Any
    ) -> NoReturn:
        sys.exit(self._code(args, prog_name or "holdfast", extra | {"standalone_mode": False}))

    def _code(self, args: Any, prog_name: str, extra: dict[str, Any]) -> int:
        words = takewhile(lambda word: word != "--", sys.argv[1:] if args is None else args)
        as_json = "--json" in words
        try:
            return int(super().main(args, prog_name, **extra) or 0)
        except click.UsageError as error:
            program = error.ctx.command_path if error.ctx else prog_name
            line = f"{error.format_message().rstrip('.')}; see {program} --help"
            return print_error(line, error.exit_code, as_json and "UsageError")
        except click.ClickException as error:
            return print_error(error.format_message(), error.exit_code, as_json and "UsageError")
        except click.Abort:
            return print_error("interrupted", INTERRUPTED)
        except HoldfastError as error:
            return print_error(str(error), error.exit_code, as_json and type(error).__name__)
        except OSError as error:
            return print_error(system_error_text(error), 1, as_json and "OSError")
        except MemoryError:
            return print_error(
                "this needs more memory than there is; "
                "call it on a machine, or in a job, with more",
                1,
            )


def print_error(line: str, code: int, kind: str | bool = False) -> int:
    """Print the message on stderr, without passwords in addresses; return the exit code. With the
    error's `kind`, print JSON as well.
    """
    # imported late: help does not need it
    from .formatting import echo_json, escape_text, without_passwords

    message = without_passwords(line)
    click.echo(f"holdfast: {escape_text(message)}", err=True)
    if kind:
        echo_json({"error": {"kind": kind, "exit_code": code, "message": message}})
    return code


def system_error_text(error: OSError) -> str:
    """Return the system's message and the file that it is about."""
    why = error.strerror or str(error) or type(error).__name__
    return (
        f"{os.fsdecode(error.filename)}: {why}"
        if isinstance(error.filename, str | bytes | os.PathLike)
        else why
    )


EXIT_CODES = (
    "Exit codes: 0 done, 1 failed or different, 2 wrong use, "
    "3 not found, 4 damaged, 6 the scheduler refused, "
    "7 no space, 8 the command failed for good, "
    "9 superseded, 11 a script loses work, 12 unreadable now, "
    "75 stopped: run me again."
)


@click.command(
    cls=Commands,
    epilog=EXIT_CODES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="holdfast", message="holdfast %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Look at runs and tend them. RUN is a run's directory, a checkpoint's, or a copy of either.
    The directory of a submission or a supervisor stands for its run. ls, show, verify, diff and
    export also read what other programs wrote: .pt, safetensors, Hugging Face, DCP, Orbax, Keras.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)


def main() -> NoReturn:
    """The entry point of the `holdfast` script."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # a terminal that lacks a character gets its escape instead
            stream.reconfigure(errors="backslashreplace")
    commands.main()
