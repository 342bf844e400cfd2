"""Plain values: small Python values become nodes of simpler values, and are restored from them.

The decoders read files, so each refuses any input that is not exactly right.
"""

from __future__ import annotations

import base64
import datetime as dt
import pathlib
import random
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import UsageError
from .codec import Node

T = TypeVar("T")


def random_state(state: tuple[Any, ...]) -> list[Any]:
    """Return the result of `random.getstate()`, its 625 words packed into bytes."""
    version, words, gauss = state
    return [version, struct.pack("<625I", *words), gauss]


def python_state(content: Any) -> tuple[Any, ...]:
    """Return the argument of `random.setstate()`; the inverse of `random_state`."""
    version, words, gauss = _require_type(list, content)
    return version, struct.unpack("<625I", words), gauss


def _require_type(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} expected, not {type(value).__name__}")
    return value


def _encode_zone(zone: dt.tzinfo | None) -> Any:
    if type(zone) is dt.timezone:
        return ["offset", *zone.__getinitargs__()]  # type: ignore[attr-defined]
    if zone is None:
        return None
    import zoneinfo

    if type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        return ["zone", zone.key]
    raise UsageError(
        f"its time zone {zone!r} is neither a dt.timezone nor a zoneinfo.ZoneInfo with a key"
    )


def _decode_zone(content: Any) -> dt.tzinfo | None:
    if content is None:
        return None
    sort, *arguments = _require_type(list, content)
    if sort == "offset":
        return dt.timezone(*arguments)
    if sort != "zone":
        raise ValueError(f"no such time zone: {content!r}")
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(_require_type(str, *arguments))
    except OSError as error:  # a directory of zones
        raise ValueError(f"no such time zone: {content!r}") from error
    except zoneinfo.ZoneInfoNotFoundError as error:
        raise UsageError(
            f"this machine does not know the time zone {arguments[0]!r}: pip install tzdata"
        ) from error


def _time_node(tag: str, fields: str) -> Callable[[Any], Node]:
    names = fields.split()
    return lambda moment: Node(
        tag, [*(getattr(moment, name) for name in names), moment.fold, _encode_zone(moment.tzinfo)]
    )


def _time_decoder(kind: Callable[..., T]) -> Callable[[Any], T]:
    def made(content: Any) -> T:
        *fields, fold, zone = _require_type(list, content)
        return kind(*fields, tzinfo=_decode_zone(zone), fold=fold)

    return made


def _decode_int(content: Any) -> int:
    if not re.fullmatch(r"-?0x[0-9a-f]+", content):
        raise ValueError(content)
    return int(content, 16)


def _decode_random(content: Any) -> random.Random:
    generator = random.Random()  # noqa: S311 -- a copy of the user's
    generator.setstate(python_state(content))
    return generator


def _decode_complex(content: Any) -> complex:
    real, imaginary = _require_type(list, content)
    return complex(_require_type(float, real), _require_type(float, imaginary))


def _decode_path(content: Any) -> pathlib.PurePath:
    flavour, text = _require_type(list, content)
    return _FLAVOURS[flavour](_require_type(str, text))


_FLAVOURS = {"posix": pathlib.PurePosixPath, "windows": pathlib.PureWindowsPath}

# of the first three: values for which JSON has no spelling
NODES: Mapping[type, Callable[[Any], Node]] = {
    int: lambda value: Node("int", hex(value)),
    float: lambda value: Node("float", struct.pack(">d", value).hex()),
    str: lambda value: Node("str", value.encode("utf-8", "surrogatepass").hex()),
    complex: lambda value: Node("complex", [value.real, value.imag]),
    bytearray: lambda value: Node("bytearray", bytes(value)),
    range: lambda value: Node("range", [value.start, value.stop, value.step]),
    slice: lambda value: Node("slice", [value.start, value.stop, value.step]),
    type(pathlib.Path()): lambda value: Node("path", str(value)),
    pathlib.PurePosixPath: lambda value: Node("purepath", ["posix", str(value)]),
    pathlib.PureWindowsPath: lambda value: Node("purepath", ["windows", str(value)]),
    dt.datetime: _time_node("datetime", "year month day hour minute second microsecond"),
    dt.time: _time_node("time", "hour minute second microsecond"),
    dt.date: lambda value: Node("date", [value.year, value.month, value.day]),
    dt.timedelta: lambda value: Node("timedelta", [value.days, value.seconds, value.microseconds]),
    random.Random: lambda value: Node("random.Random", random_state(value.getstate())),
}

MAKERS: Mapping[str, Callable[[Any], Any]] = {
    "int": _decode_int,
    "float": lambda content: struct.unpack(">d", bytes.fromhex(content))[0],
    "str": lambda content: bytes.fromhex(content).decode("utf-8", "surrogatepass"),
    "long_str": lambda content: _require_type(bytes, content).decode("utf-8", "surrogatepass"),
    "bytes": lambda content: base64.b64decode(_require_type(str, content), validate=True),
    "complex": _decode_complex,
    "bytearray": lambda content: bytearray(_require_type(bytes, content)),
    "range": lambda content: range(*_require_type(list, content)),
    "slice": lambda content: slice(*_require_type(list, content)),
    "path": lambda content: pathlib.Path(_require_type(str, content)),
    "purepath": _decode_path,
    "datetime": _time_decoder(dt.datetime),
    "time": _time_decoder(dt.time),
    "date": lambda content: dt.date(*_require_type(list, content)),
    "timedelta": lambda content: dt.timedelta(*_require_type(list, content)),
    "random.Random": _decode_random,
}
