"""Formatting: formats text, tables, sizes and times for the terminal. Text from a file cannot
control the terminal.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import click
import msgspec

from ..errors import Damaged, HoldfastError
from ..legible import legible, printable
from ..provenance import REDACTED, USER_INFO
from ..store.format import created_s

MOST_LETTERS = 10_000  # of a line
JSON_VERSION = 1  # a field keeps its name and meaning; new ones may come without a new version
_BETWEEN = "  "  # columns
# a path of this process's own -> the address of what was brought there
_ADDRESSES: dict[str, str] = {}


@contextmanager
def naming_addresses(addresses: Mapping[str, str]) -> Iterator[None]:
    """Within this block, print addresses in place of the local paths of fetched files, also
    in errors.
    """
    _ADDRESSES.update(addresses)
    try:
        yield
    except HoldfastError as error:
        error.args = tuple(map(replace_paths, error.args))
        raise
    except OSError as error:
        error.filename = error.filename and replace_paths(str(error.filename))
        raise
    finally:
        for path in addresses:
            del _ADDRESSES[path]


def replace_paths(text: object) -> str:
    """Return `text` with addresses in place of local paths."""
    plain = str(text)
    for path in sorted(_ADDRESSES, key=len, reverse=True):
        plain = plain.replace(path, _ADDRESSES[path])
    return plain


def without_passwords(line: str) -> str:
    """Return `line` with the passwords in its addresses removed, for example in the words of
    a command.
    """

    def hidden(match: re.Match[str]) -> str:
        before, user = line[: match.start()], match[0].partition(":")[0]
        # elsewhere the user is a token
        return user if before.endswith(("sftp://", "ssh://")) else REDACTED

    return USER_INFO.sub(hidden, line)


def escape_text(text: object, most: int | None = MOST_LETTERS) -> str:
    """Return `text` on one line, with control, formatting and unpaired characters written as
    escapes.

    Of more than `most` characters, only the first ones are shown.
    """
    plain = replace_paths(text)
    if most is not None and len(plain) > most:
        plain = f"{plain[:most]}... and {len(plain) - most:,} more characters"
    return printable(plain)


def echo(text: object = "", *, err: bool = False, most: int | None = MOST_LETTERS) -> None:
    click.echo(escape_text(text, most), err=err)


def echo_json(value: Any) -> None:
    """Print `value` as JSON, in ASCII: numbers that JSON lacks become strings, text is passed
    through `legible`. A command prints one such object, with the version of its fields.
    """
    click.echo(_escaped(msgspec.json.format(_encode_json(versioned(value)), indent=1)))


def versioned(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return `facts` with the version of the fields: docs/json.md has them."""
    return {"version": JSON_VERSION, **facts}


def print_report(
    facts: Any, lines: Iterable[object], *, as_json: bool, most: int | None = MOST_LETTERS
) -> None:
    """Print the facts as JSON, or the lines as text; of a line at most that many characters."""
    if as_json:
        echo_json(facts)
        return
    for line in lines:
        echo(line, most=most)


def json_line(value: Any) -> str:
    return _escaped(msgspec.json.format(_encode_json(value), indent=0))


def _encode_json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(_replace_not_finite(value))
    except RecursionError as error:
        raise Damaged("what is to be shown is nested too deeply: no save writes that") from error


def _escaped(text: bytes) -> str:
    return _BEYOND.sub(lambda found: json.dumps(found[0])[1:-1], text.decode())


_BEYOND = re.compile(r"[^\n -~]")


def _replace_not_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, str):
        return legible(replace_paths(value))
    if isinstance(value, Mapping):
        return {legible(str(key)): _replace_not_finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [
            each if type(each) is int and -_WIDE < each < _WIDE else _replace_not_finite(each)
            for each in value
        ]
    if type(value) is int and not -_WIDE < value < _WIDE:
        return msgspec.Raw(str(value).encode())
    return value


_WIDE = 1 << 63  # msgspec encodes shorter integers only


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """Print rows under their columns, without empty columns. No cell is folded or cut: where a
    terminal is too narrow, columns are left out from the right, and a last line names them.
    """
    cells = [[escape_text(cell) for cell in row] for row in rows]
    kept = [index for index, _ in enumerate(columns) if any(row[index] for row in cells)]
    widths = [max(len(columns[index]), *(len(row[index]) for row in cells)) for index in kept]
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    ends = [end - len(_BETWEEN) for end in accumulate(width + len(_BETWEEN) for width in widths)]
    shown = max(sum(end <= wide for end in ends), 1)
    for row in [list(columns), *cells]:
        aligned = (
            f"{row[index]:{'>' if columns[index] in right else '<'}{width}}"
            for index, width in zip(kept[:shown], widths, strict=False)
        )
        click.echo(_BETWEEN.join(aligned).rstrip())
    if left := [columns[index] for index in kept[shown:]]:
        click.echo(f"not shown, for want of width: {', '.join(left)}")


@contextmanager
def showing_progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line on the terminal until its next call; "" removes the line.

    If stderr is no terminal, it does nothing.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.text import Text

    status = Console(stderr=True).status("")

    def tell(line: str) -> None:
        if line:
            status.update(Text(escape_text(line)))
            status.start()
        else:
            status.stop()

    try:
        yield tell
    finally:
        status.stop()


def format_section(title: str, lines: Iterable[str]) -> list[str]:
    """Return an empty line, the title, and the lines indented; nothing without lines."""
    indented = [f"  {line}" for line in lines]
    return ["", title, *indented] if indented else []


def limit_lines(lines: Sequence[Any], most: int | None) -> list[Any]:
    """Return the first `most` of the lines (None: all), and a line with how many more there are."""
    return [*lines[:most], *omitted_lines(0 if most is None else len(lines) - most)]


def omitted_lines(left: int) -> list[str]:
    """Return the line that says how many lines were left out; nothing if none was."""
    return [f"... and {left} more (--all)"] if left > 0 else []


def format_time(created: str) -> str:
    """Return a manifest's time to the second, in UTC."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(created_s(created)))
    except (Damaged, OverflowError, OSError, ValueError):
        return created


def age_s(created: str) -> float | None:
    try:
        return float(round(time.time() - created_s(created)))
    except (Damaged, OverflowError):
        return None


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """Return metrics on one line: "loss=0.123 val_acc=0.98"."""
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in metrics.items()
    )
