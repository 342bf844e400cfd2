"""`holdfast pin` and `holdfast unpin`:
keep a checkpoint whatever the rules say, and stop keeping it.
"""

from __future__ import annotations

import click

from ..store.locate import run_directory_of
from ..store.store import Store
from . import options
from .formatting import print_report


@click.command()
@options.run_here_at
@options.needed_step
@options.as_json
def command(run: str, step: int | str, as_json: bool) -> None:
    """Keep that checkpoint of RUN until `holdfast unpin`;
    no rule removes it. Possible while the run goes on.
    """
    _change(run, step, pinned=True, as_json=as_json)


@click.command()
@options.run_here_at
@options.needed_step
@options.as_json
def unpin(run: str, step: int | str, as_json: bool) -> None:
    """Take the pin off that checkpoint of RUN: the next prune removes it unless a rule keeps it."""
    _change(run, step, pinned=False, as_json=as_json)


def _change(run: str, step: int | str, *, pinned: bool, as_json: bool) -> None:
    place = options.locate_run(run)
    root = run_directory_of(place)
    name = place.select(step).name
    store = Store(root)
    (store.pin if pinned else store.unpin)(name)
    facts = {"run": run, "name": name, "pinned": pinned}
    print_report(facts, [f"{name} {'pinned' if pinned else 'unpinned'}"], as_json=as_json)
