"""TensorBoard's event files: writes records of scalars, and finds the end of a file. Pure.

A file is a sequence of records: length, checksum of the length, an Event, checksum of the Event.
Four fields of an Event are used: time, step, scalars by name, and SessionLog.START, which revokes
earlier values from this step on.

Sources: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto,
tensorflow/core/framework/summary.proto; RFC 3720, appendix B.4 (CRC-32C).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping

_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = (
    b"\x09",
    b"\x10",
    b"\x1a",
    b"\x2a",
    b"\x3a",
)
_VALUE, _TAG, _SIMPLE_VALUE = b"\x0a", b"\x0a", b"\x15"
_START = b"\x08\x01"
_HEAD_BYTES, _TAIL_BYTES = 12, 4


def header(time: float) -> bytes:
    """Return the first record of every file."""
    return _record(_event(time, 0) + _FILE_VERSION + _length_prefixed(b"brain.Event:2"))


def start(time: float, step: int) -> bytes:
    """Return a record that revokes all earlier values of `step` and of later steps."""
    return _record(_event(time, step) + _SESSION_LOG + _length_prefixed(_START))


def scalars(time: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return a record with the `values` at `step`, by their tags."""
    found = b"".join(
        _VALUE + _length_prefixed(_scalar(tag, value)) for tag, value in values.items()
    )
    return _record(_event(time, step) + _SUMMARY + _length_prefixed(found))


def last_step(data: bytes) -> int | None:
    """Return the step of the last complete record;
    an incomplete one ends the file. None: there is none.
    """
    at, found = 0, None
    while at + _HEAD_BYTES <= len(data):
        size, checksum = struct.unpack_from("<QI", data, at)
        first = at + _HEAD_BYTES
        at = first + size + _TAIL_BYTES
        if checksum != _masked_crc(data[first - _HEAD_BYTES : first - 4]) or at > len(data):
            break
        if data[first : first + 1] != _WALL_TIME or data[first + 9 : first + 10] != _STEP:
            break
        found = _read_varint(data, first + 10)
    return found


def _event(time: float, step: int) -> bytes:
    return _WALL_TIME + struct.pack("<d", time) + _STEP + _varint(step)


def _scalar(tag: str, value: float) -> bytes:
    packed = struct.pack("<f", ctypes.c_float(value).value)  # infinite if 32 bits are too few
    return _TAG + _length_prefixed(tag.encode("utf-8", "replace")) + _SIMPLE_VALUE + packed


def _length_prefixed(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _read_varint(data: bytes, at: int) -> int:
    """Return the varint at that place."""
    found = shift = 0
    while data[at] & 0x80:
        found |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return found | data[at] << shift


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return (
        length
        + struct.pack("<I", _masked_crc(length))
        + data
        + struct.pack("<I", _masked_crc(data))
    )


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc_table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_crc_table_entry(byte) for byte in range(256)]
