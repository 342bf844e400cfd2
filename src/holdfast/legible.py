r"""Text in the form that JSON can hold. JSON has no lone surrogates, which stand for bytes that are
not UTF-8.

The rule: byte ff of an argument, a path or a variable becomes the four characters `\xff`; any other
lone surrogate becomes `\ud800`, for example. All other text stays as it is. This is for text that
people read; a tree and the path of a file have separate encodings that keep their exact bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

# What decoders raise at JSON that Holdfast did not write, deep JSON included. The SystemError is
# msgspec's until 0.22, at an integer that no float can hold.
UNREADABLE = (ValueError, RecursionError, SystemError)


_ENDLESS = sys.maxsize // 2  # about sys.maxsize is the total of a loop that has none
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def is_text(text: str) -> bool:
    """Whether `text` has no lone surrogates."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def legible(text: str) -> str:
    """Return `text` with lone surrogates written as escapes."""
    return text if is_text(text) else "".join(map(_escape, text))


def _escape(letter: str) -> str:
    # os.fsdecode returns such a character for a byte that is not UTF-8. Source: PEP 383
    if "\udc80" <= letter <= "\udcff":
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return f"\\u{ord(letter):04x}" if "\ud800" <= letter <= "\udfff" else letter


def printable(text: str, kept: str = "") -> str:
    """Return `text` on one line: what could break it, or command the terminal, becomes an escape.

    These are control, formatting and unpaired characters, and all that Python does not call
    printable, but for those in `kept`.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 leaf` or `2 leaves`: a number with its noun,
    whose plural is `many`, or else has an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def nth(number: int, total: int | None = None) -> str:
    """Return the place of a pass that is counted from 0: `2/4` is the second of four."""
    return f"{number + 1}" + (f"/{total}" if total and total < _ENDLESS else "")


def duration(seconds: float | None) -> str:
    """Return a time as text, in the largest unit of which it has at least two: 0.4 s, 95 s, 7.5
    min, 3 h. Of None: nothing.
    """
    if seconds is None or seconds < 0:
        return ""
    units = ((86400, "days"), (3600, "h"), (60, "min"))
    size, unit = next((each for each in units if seconds >= 2 * each[0]), (1, "s"))
    value = seconds / size
    return f"{value:.0f} {unit}" if value >= 9.95 or not value else f"{value:.2g} {unit}"


def size(size_bytes: int) -> str:
    """Return a number of bytes as text with three digits and a unit: "1.23 MB"."""
    number, unit = float(size_bytes), 0
    while number >= 999.5 and unit < len(_UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.3g} {_UNITS[unit]}"


def json_bytes(value: Any) -> bytes:
    """Return `value` as JSON with legible texts and keys."""
    import msgspec  # imported late: most programs encode no JSON here

    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_json_safe_value(msgspec.to_builtins(value)))


def _json_safe_value(value: Any) -> Any:
    """Return `value` with every text and key legible.
    If two keys are spelled alike then, one gets a `~`.
    """
    if isinstance(value, str):
        return legible(value)
    if isinstance(value, list | tuple):
        return [_json_safe_value(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    found: dict[Any, Any] = {}
    for key, each in value.items():
        name = _json_safe_value(key)
        while name != key and (name in found or name in value):
            name += "~"
        found[name] = _json_safe_value(each)
    return found


def key_text(key: object) -> str:
    """Return the text of a mapping's key. A number of more digits than Python prints is in hex."""
    try:
        return str(key)
    except ValueError:
        return hex(key) if isinstance(key, int) else type(key).__name__
