"""`holdfast release`: take back what `holdfast hold` said."""

from __future__ import annotations

import click

from . import options
from .hold import change


@click.command(short_help="Take back what `holdfast hold` said.")
@options.run
@options.as_json
def command(run: str, as_json: bool) -> None:
    """Let RUN be started again and requeued as it asks. What has stopped meanwhile stays so: start or submit it yourself."""
    change(run, held=False, as_json=as_json)
