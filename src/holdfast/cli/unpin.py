"""`holdfast unpin`: the opposite of `pin`."""

from __future__ import annotations

import click

from . import options
from .pin import change


@click.command(short_help="Let the rules remove a checkpoint again.")
@options.run
@options.needed_step
@options.as_json
def command(run: str, step: int | str, as_json: bool) -> None:
    """Take the pin off that checkpoint of RUN: it goes when the next prune says so."""
    change(run, step, pinned=False, as_json=as_json)
