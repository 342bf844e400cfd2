"""Writes the manual pages, one a command, from the commands themselves:  python docs/man.py ~/.local/share/man/man1"""

import inspect
import re
import sys
from pathlib import Path

import click

import holdfast
from holdfast.cli import COMMANDS, EXIT_CODES, GROUPS, commands


def escaped(text: str) -> str:
    """Text as roff prints it: no backslash and no leading dot or quote is an order."""
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", r"\e").replace("-", r"\-"), flags=re.MULTILINE)


def paragraphs(text: str) -> str:
    r"""Paragraphs of a docstring; what follows a \b keeps its lines."""
    parts = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        kept = part.startswith("\b")
        lines = escaped(part.removeprefix("\b\n"))
        parts.append(f".nf\n{lines}\n.fi" if kept else lines)
    return "\n.PP\n".join(parts)


def page(name: str, command: click.Command) -> str:
    """The page of one command, or with an empty name that of all."""
    context = click.Context(command, info_name=f"holdfast {name}".strip())
    title = f"holdfast-{name}".rstrip("-")
    short = COMMANDS.get(name, "make any long computation survive").rstrip(".")
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [
        f'.TH "{title.upper()}" 1 "" "holdfast {holdfast.__version__}" "Holdfast"',
        f".SH NAME\n{escaped(title)} \\- {escaped(short)}",
        f".SH SYNOPSIS\n.B {escaped(context.info_name or '')}\n{escaped(usage)}",
        f".SH DESCRIPTION\n{paragraphs(command.help or '')}",
    ]
    rows = [row for each in command.get_params(context) if (row := each.get_help_record(context))]
    if rows:
        parts.append(".SH OPTIONS\n" + "\n".join(f".TP\n.B {escaped(left)}\n{escaped(right)}" for left, right in rows))
    if not name:
        for group, names in GROUPS.items():
            listed = (f".TP\n.BR holdfast\\-{each} (1)\n{escaped(COMMANDS[each])}" for each in names.split())
            parts.append(f".SH {group.upper()}\n" + "\n".join(listed))
    elif command.epilog:
        parts.append(f".SH EXAMPLES\n{paragraphs(command.epilog.replace('Examples:' + chr(10), ''))}")
    parts.append(f".SH EXIT STATUS\n{escaped(EXIT_CODES.removeprefix('Exit codes: '))}")
    if name:
        parts.append(".SH SEE ALSO\n.BR holdfast (1)")
    return "\n".join(parts) + "\n"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    context = click.Context(commands)
    (folder / "holdfast.1").write_text(page("", commands))
    for name in COMMANDS:
        if command := commands.get_command(context, name):
            (folder / f"holdfast-{name}.1").write_text(page(name, command))
    print(f"{len(COMMANDS) + 1} pages in {folder}; man holdfast reads the first")


if __name__ == "__main__":
    main(Path(sys.argv[1]).expanduser())
