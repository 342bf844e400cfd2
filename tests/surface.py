"""The public surface, a line for each name that a user may write: `python tests/surface.py > tests/golden/surface.txt`.

A parameter, an option or a method that comes, goes or changes its default shows in the diff of that file.
"""

import inspect
import re
import sys

import click

import holdfast
from holdfast.cli import commands


def surface():
    """Each public name of `holdfast` with its parameters and defaults, each command with its options."""
    for name in sorted(holdfast.__all__):
        yield from _shown(name, getattr(holdfast, name))
    yield from _command("holdfast", commands)


def _shown(name, thing):
    yield f"{name}{_parameters(thing)}"
    if inspect.isclass(thing):
        members = [each for each in vars(thing) if not each.startswith("_")]
        for member in sorted(members):
            value = inspect.getattr_static(thing, member)
            call = getattr(thing, member) if isinstance(value, staticmethod | classmethod) else value
            yield f"{name}.{member}{_parameters(call) if callable(call) else ''}"


def _parameters(thing):
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return ""
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in found if each.name != "self"]
    return re.sub(r" at 0x\w+", "", str(inspect.Signature(plain)))


def _command(name, command):
    yield name
    for each in command.params:
        yield f"{name} {' '.join([*each.opts, *each.secondary_opts]) if isinstance(each, click.Option) else each.name}"
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for inner in command.list_commands(context):
                yield from _command(f"{name} {inner}", command.get_command(context, inner))


if __name__ == "__main__":
    sys.stdout.write("\n".join(surface()) + "\n")
