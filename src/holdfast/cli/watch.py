"""`holdfast watch`: runs while they are at work: pace, time left, saves, metrics, attempts."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import click

from ..errors import NotFound
from ..legible import counted, duration
from ..report.live import LiveRun, process_facts, sparkline
from ..supervise import status
from . import options
from .formatting import echo, escape_text, json_line, versioned

BETWEEN = 2  # columns
SPARK, PANEL_SPARK = 12, 40  # letters of a sparkline
MOST_STARTS = 12  # that are shown of one run
LOOK_S = 2.0
QUEUE_S = 30.0  # the scheduler is asked so often
AGES_S = 10.0  # the ages of saves are drawn anew so often, if nothing else is
FOLDER_S = 10.0  # so often new runs are looked for
LINE_S = 600.0  # without a terminal a run is told of at least so often
SORTS = ("name", "state", "step", "left")
AT_WORK = {"running", "queued"}
COLUMNS = ("", "RUN", "STATE", "STEP", "STEPS/S", "LEFT", "SAVED", "METRIC", "", "STARTS")
KEYS = "q quits · s sorts · ↑↓ choose · enter opens a run, esc goes back"


@click.command()
@click.argument(
    "paths",
    metavar="[RUN...]",
    nargs=-1,
    shell_complete=options.complete_directories,
)
@options.as_json
def command(paths: tuple[str, ...], as_json: bool) -> None:
    """Show runs while they are at work: step, pace, time left, last save, metrics, attempts.

    RUN is a run, a sweep or a folder of runs; by default this folder. It ends when nothing runs or
    waits. Without a terminal it prints a line whenever a run saves, starts or ends.
    """
    for path in paths:
        options.require_local_path(click.get_current_context(), _PATH, path)
    watched = Watched([Path(path) for path in paths or (".",)])
    if (
        not as_json
        and sys.stdout.isatty()
        and sys.stdin.isatty()
        and os.environ.get("TERM") != "dumb"
    ):
        _show(watched)
    else:
        _print(watched, as_json=as_json)


_PATH = click.Argument(["path"])


class Watched:
    """The runs that are watched; each look reads what is new."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._queue: Any = None
        self._queue_s = self._folder_s = float("-inf")
        self.runs: dict[str, LiveRun] = {}
        self.changed: set[str] = set()

    def look(self) -> None:
        """Bring all runs up to date; leave out those that were removed.

        Raises:
            NotFound: there was none at the first look.
        """
        now_s = time.monotonic()
        there = {key: run for key, run in self.runs.items() if not run.is_removed}
        if now_s - self._folder_s > FOLDER_S or len(there) < len(self.runs):
            self._folder_s, self.runs = now_s, there
            for path in self._paths:
                with suppress(NotFound) if self._queue_s > 0 else nullcontext():
                    for place in status.find_runs(path):
                        key = str(place.directory or place.run)
                        self.runs.setdefault(key, LiveRun(place))
        if now_s - self._queue_s > QUEUE_S:
            self._queue, _ = status.read_queue()
            self._queue_s = time.monotonic()
        self.changed = {
            key for key, run in self.runs.items() if run.refresh(self._queue, time.time())
        }

    @property
    def over(self) -> bool:
        """Whether nothing runs or waits."""
        return not any(run.status and run.status.state in AT_WORK for run in self.runs.values())

    def sorted_by(self, sort: str) -> list[LiveRun]:
        """Return the runs in an order of SORTS."""

        def key(run: LiveRun) -> tuple[Any, ...]:
            state = run.status.state if run.status else ""
            return {
                "name": (),
                "state": (state not in AT_WORK, state),
                "step": (-(run.step or 0),),
                "left": (run.left_s is None, run.left_s or 0.0),
            }[sort]

        runs = list(self.runs.values())  # in the order in which they were found
        return runs if sort == "name" else sorted(runs, key=key)


def cells(run: LiveRun, width: int) -> list[str]:
    """Return one row of the table, but for its mark."""
    found = run.status
    if found is None:
        return [run.place.name, *[""] * 8]
    name, values = next(iter(run.metrics.items()), ("", ()))
    pace = run.steps_per_s
    return [
        found.name,
        f"{found.state}{f' ({found.why})' if found.why else ''}",
        "" if run.step is None else f"{run.step:,}",
        "" if pace is None else f"{pace:.3g}",
        _left(run),
        _saved(run),
        f"{name} {values[-1]:.4g}" if values else "",
        sparkline(values, width) if values else "",
        found.summary,
    ]


def _left(run: LiveRun) -> str:
    parts = [] if run.left_s is None else [duration(run.left_s)]
    if run.status is not None and run.status.deadline is not None:
        parts.append(f"job {duration(max(0.0, run.status.deadline - time.time()))}")
    return ", ".join(parts)


def _saved(run: LiveRun) -> str:
    if run.saved is None:
        return ""
    waited = f", waited {duration(run.saved.stall_s)}" if run.saved.stall_s >= 0.1 else ""
    return f"{duration(round(max(0.0, time.time() - run.saved.at_s)))} ago{waited}"


def line(run: LiveRun) -> str:
    """Return a run in one line of text."""
    found = run.status
    if found is None:
        return run.place.name
    words = [f"{found.name}: {found.state}{f' ({found.why})' if found.why else ''}"]
    words += [f"step {run.step:,}"] if run.step is not None else []
    words += [f"{run.steps_per_s:.3g}/s"] if run.steps_per_s is not None else []
    words += [f"left {_left(run)}"] if _left(run) else []
    words += [f"saved step {run.saved.step:,} {_saved(run)}"] if run.saved is not None else []
    words += [f"{name} {values[-1]:.4g}" for name, values in list(run.metrics.items())[:4]]
    words += [found.summary] if found.summary else []
    return ", ".join(words)


def facts(run: LiveRun) -> dict[str, Any]:
    """Return what a line of --json holds."""
    found = run.status
    return {
        "run": str(run.place.directory or run.place.run),
        "name": run.place.name,
        "state": None if found is None else found.state,
        "why": None if found is None else found.why,
        "step": run.step,
        "steps_per_s": run.steps_per_s,
        "left_s": run.left_s,
        "deadline": None if found is None else found.deadline,
        "saved": None if run.saved is None else run.saved._asdict(),
        "metrics": {name: values[-1] for name, values in run.metrics.items()},
        "starts": 0 if found is None else len(found.starts),
    }


def _print(watched: Watched, *, as_json: bool) -> None:
    """Print a line for each run, and again when it saves, starts or ends, until all are over."""
    told: dict[str, tuple[object, float]] = {}
    while True:
        watched.look()
        for key in told.keys() - watched.runs.keys():
            del told[key]
            if not as_json:
                echo(f"{time.strftime('%H:%M:%S')}  {key}: was removed")
        for key, run in watched.runs.items():
            now = (
                run.status and (run.status.state, run.status.why, len(run.status.starts)),
                run.saved and run.saved.step,
            )
            before, told_s = told.get(key, (None, float("-inf")))
            at_work = run.status is not None and run.status.state in AT_WORK
            if now != before or (at_work and time.monotonic() - told_s > LINE_S):
                told[key] = (now, time.monotonic())
                if as_json:
                    echo(json_line(versioned(facts(run))), most=None)
                else:
                    echo(f"{time.strftime('%H:%M:%S')}  {line(run)}")
                sys.stdout.flush()
        if watched.over:
            if not as_json:
                echo(_last_line(watched))
            return
        time.sleep(LOOK_S)


def _last_line(watched: Watched) -> str:
    states = [run.status.state for run in watched.runs.values() if run.status]
    if not states:
        return "no run is left"
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"nothing runs or waits: {counted(len(states), 'run')}, {counts}"


def _show(watched: Watched) -> None:
    from rich.console import Console
    from rich.live import Live

    watched.look()
    sort, chosen, opened = 0, 0, len(watched.runs) == 1
    console = Console()
    with _keys() as read_key, Live(console=console, screen=True, auto_refresh=False) as live:
        look_s, drawn_s = time.monotonic(), float("-inf")
        while True:
            runs = watched.sorted_by(SORTS[sort])
            if runs and (watched.changed or time.monotonic() - drawn_s > AGES_S):
                chosen = max(0, min(chosen, len(runs) - 1))
                shown = _panel(runs[chosen]) if opened else _table(runs, chosen, console, sort)
                live.update(shown, refresh=True)
                watched.changed, drawn_s = set(), time.monotonic()
            if watched.over:
                break
            key = read_key(max(0.0, look_s + LOOK_S - time.monotonic()))
            drawn_s = float("-inf") if key else drawn_s
            match key:
                case "q" | "Q":
                    break
                case "s":
                    sort = (sort + 1) % len(SORTS)
                case "\n" | "\r":
                    opened = True
                case "\x1b" | "\x7f":
                    opened = False
                case "up" | "k":
                    chosen -= 1
                case "down" | "j":
                    chosen += 1
                case _:
                    pass
            if time.monotonic() - look_s >= LOOK_S:
                watched.look()
                look_s = time.monotonic()
    for run in watched.sorted_by(SORTS[sort]):  # what stays on the screen
        echo(line(run))
    if watched.over:
        echo(_last_line(watched))


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for a key; it returns "" when there was none."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read(wait_s: float) -> str:
        if not select.select([descriptor], [], [], wait_s)[0]:
            return ""
        key = os.read(descriptor, 8).decode(errors="replace")
        return {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down"}.get(key, key)

    try:
        tty.setcbreak(descriptor)
        yield read
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _table(runs: Sequence[LiveRun], chosen: int, console: Any, sort: int) -> Any:
    """Return the table of all runs; columns and rows that do not fit are left out."""
    from rich.cells import cell_len
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    width = SPARK if console.encoding.startswith("utf") else 0
    rows = [
        [escape_text(cell) for cell in (">" if at == chosen else " ", *cells(run, width))]
        for at, run in enumerate(runs)
    ]
    table = Table(box=None, padding=(0, BETWEEN, 0, 0))
    shown, left = [], console.width
    for at, name in enumerate(COLUMNS):
        wide = max(len(name), *(cell_len(row[at]) for row in rows))
        wide = min(wide, console.width // 2) if name == "RUN" else wide  # each row has its name
        if any(row[at].strip() for row in rows) and wide + BETWEEN <= left:
            shown.append(at)
            left -= wide + BETWEEN
            right = name in {"STEP", "STEPS/S"}
            justify: Any = "right" if right else "left"
            table.add_column(name, no_wrap=True, justify=justify, max_width=wide)
    room = max(1, console.height - 4)
    first = max(0, min(chosen - room // 2, len(rows) - room))
    for at in range(first, min(first + room, len(rows))):
        style = "bold" if at == chosen else ""
        table.add_row(*(Text(rows[at][column], style=style) for column in shown))
    keys = Text(f"by {SORTS[sort]} · {KEYS}", style="dim", no_wrap=True, overflow="ellipsis")
    return Group(table, keys)


def _panel(run: LiveRun) -> Any:
    """Return all that is known of one run."""
    from rich.console import Group
    from rich.text import Text

    lines = [line(run), ""]
    for name, values in run.metrics.items():
        lines.append(f"{name:<16} {values[-1]:>10.4g}  {sparkline(values, PANEL_SPARK)}")
    found = run.status
    if found is not None:
        facts = {"next": found.next, "NaN": found.not_finite, "copies": found.at_risk}
        facts["output"] = found.output or ""
        facts["node"] = process_facts(run.owner)
        lines += ["", *(f"{name:<8}{text}" for name, text in facts.items() if text), ""]
        lines += [
            f"start {number}: on {each.host}, to step {each.last or 0:,}: "
            f"{each.cause or 'at work'}{f' ({each.why})' if each.why else ''}"
            for number, each in list(enumerate(found.starts, 1))[-MOST_STARTS:]
        ]
    return Group(*(Text(escape_text(each), overflow="fold") for each in [*lines, "", KEYS]))
