"""Protocol: the lines of JSON between a run's `client` and the `worker`.

The first line is `open`. Every request gets one reply, with `ok` or `error`; before it any number of notes may come.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal["silent", "refused", "full", "later", "taken", "foreign", "gone", "damaged", "cancelled"]

MOST_BYTES = 64 << 20  # of one line: manifests do not go through here, but lists of copies do


class Request(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`place` is an index into the places of `open`. Each try ends after `budget_s` seconds without progress."""

    id: int
    op: str
    place: int = -1
    budget_s: float = 120.0
    args: dict[str, Any] = {}


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a request, or a note before it: "retrying" with a text, or "sent" with the bytes so far.

    The note "bye" of id 0 is the worker's last line.
    """

    id: int
    ok: dict[str, Any] | None = None
    error: Kind | None = None
    text: str = ""
    note: str = ""
    bytes: int = 0


class OpenedPlace(msgspec.Struct, frozen=True):
    """One place as the worker opened it, before any connection."""

    shown: str
    atomic: bool = True
    refused: str = ""  # why it cannot be opened: an unknown kind of URL, or a missing package


requests = msgspec.json.Decoder(Request)  # made here, where only one thread is
replies = msgspec.json.Decoder(Reply)
msgspec.json.Decoder(OpenedPlace)


def line(record: Request | Reply) -> bytes:
    return msgspec.json.encode(record) + b"\n"


class LineBuffer:
    """Splits the bytes from a pipe into lines."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now.

        Raises:
            ValueError: a line is too long.
        """
        self._held += data
        *lines, rest = self._held.split(b"\n")
        if len(rest) > MOST_BYTES:
            raise ValueError(f"a line has more than {MOST_BYTES} bytes")
        self._held = rest
        return [bytes(each) for each in lines if each]
