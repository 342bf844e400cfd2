"""A place that holds copies: what it can do, which errors leave it, and its name without secrets.

    Silent      it did not answer, or not in time: try again
    Refused     it answered "no": credentials, permission, no such bucket. The message says what to
                do
    Full        its space or quota is used up
    NotKept     what lies there differs from what was sent: send it again

Each library's errors become one of these at the edge, or FileNotFoundError or FileExistsError.
Their texts are one line, and contain no secret. An error of the bytes' *source* is raised
unchanged.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import Damaged, StoreError, UsageError
from ..store.format import MOST_BYTES

# the bytes of one file, from its beginning, each time it is called
Pieces = Callable[[], Iterator[bytes]]

LOCAL = ("", "file", "local")  # schemes of folders that are mounted here
# what stands before the @ is a name there; elsewhere, a token
_WITH_USER = ("sftp", "ssh", "abfs", "abfss", "az")
_SECRET = re.compile(
    r"(^|_)(SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIALS?|KEY|SAS|SIG|CONNECTION_STRING)(_|$)",
    re.IGNORECASE,
)
# characters of a secret in the environment: a shorter value would be taken for a part of any word
_SHORTEST = 8
_LONGEST = 300  # characters of a library's text that are repeated


class Silent(OSError):
    pass


class Refused(StoreError):
    pass


class Full(StoreError):
    pass


class NotKept(Damaged):
    pass


class Reading(Protocol):
    """The operations that read a place. A `path` is relative to its URL, with forward slashes; ""
    is the place itself.
    """

    def read(self, path: str) -> bytes:
        """Return a small file; of a larger file only the beginning.
        FileNotFoundError if it is missing.
        """
        ...

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; [] if there is no such folder."""
        ...

    def get(self, path: str) -> Iterator[bytes]:
        """Yield a file in pieces of some MiB.
        FileNotFoundError if it is missing, at the first piece.
        """
        ...

    def check(self, path: str, size_bytes: int, pieces: Pieces) -> str:
        """Compare a file with the pieces by the server's own checksum of the whole object, and
        return its kind.

        Return "" if the server has none: read the file back. NotKept if they differ.
        """
        ...


class Writing(Protocol):
    """The operations that change a place."""

    def create(self, path: str, data: bytes) -> None:
        """Write a small file durably, if there is none. FileExistsError if there is one.

        After Silent the file may have been written, or not.
        """
        ...

    def put(self, path: str, size_bytes: int, pieces: Pieces) -> str:
        """Write a whole file durably, in place of any that is there, and check it as `check` does.

        No half of a file is ever seen under this name.
        """
        ...

    def copy(self, source: str, path: str) -> bool:
        """Copy a file within the place, in place of any that is there. Its bytes are not sent, and
        not verified.

        Return False if the place cannot do that. FileNotFoundError if there is no `source`.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all in it:
        its manifest first. A missing one is accepted.
        """
        ...


def read_small(pieces: Iterator[bytes]) -> bytes:
    """Return the bytes of a small file. If it is too long, return just enough to show that."""
    found = bytearray()
    for piece in pieces:
        found += piece
        if len(found) > MOST_BYTES:
            break
    return bytes(found)


class Place(Reading, Writing, Protocol):
    """One place, for one thread at a time. The first call connects;
    after Silent the next call connects anew.
    """

    shown: str  # its URL without secrets

    @property
    def atomic(self) -> bool:
        """Whether `create` has one winner among all machines.
        An object store shows it at the first.
        """
        ...

    def close(self) -> None: ...


def redact_url(url: str) -> str:
    """Return the URL without password, token,
    query and fragment; of a folder, its absolute path.
    """
    scheme = scheme_of(url)
    if scheme in LOCAL:
        return os.path.abspath(Path(url.partition("://")[2] if "://" in url else url).expanduser())
    if unquoted_credentials(url):
        return (
            f"{scheme}://***@{url.rpartition('@')[2].partition('?')[0].partition('#')[0]}".rstrip(
                "/"
            )
        )
    parts = urlsplit(url)
    before, _, host = parts.netloc.rpartition("@")
    user = before.partition(":")[0] if scheme in _WITH_USER else ""
    return f"{scheme}://{user}{'@' if user else ''}{host}{parts.path}".rstrip("/")


def unquoted_credentials(url: str) -> str:
    """Return the user and password of a URL whose password contains unquoted characters that
    end the host.
    """
    if scheme_of(url) in LOCAL:
        return ""
    whole = url.partition("://")[2]
    host = re.split("[/?#]", whole, maxsplit=1)[0]
    return whole.rpartition("@")[0] if ":" in host and "@" not in host and "@" in whole else ""


def scheme_of(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else ""


def redact_error(error: BaseException | str, url: str = "") -> str:
    """Return a library's error as one line, without its number and without secrets of `url`
    and environment.
    """
    text = " ".join(_error_text(error).split()).removesuffix(":") or type(error).__name__
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _error_text(error: BaseException | str) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return str(error) or ("the connection was closed" if isinstance(error, EOFError) else "")


def _secrets(url: str) -> set[str]:
    found = set()
    if hidden := unquoted_credentials(url):
        found = {hidden, hidden.partition(":")[2], *re.split("[/?#]", hidden.partition(":")[2])}
    elif scheme_of(url) not in LOCAL:
        parts = urlsplit(url)
        before = parts.netloc.rpartition("@")[0]
        user, _, password = before.partition(":")
        words = [
            password,
            parts.query,
            parts.fragment,
            *(value for _, value in parse_qsl(parts.query)),
        ]
        words += [] if scheme_of(url) in _WITH_USER else [user]
        found = {form for word in words for form in (word, unquote(word))}
    for name, value in os.environ.items():
        found.update(_values(name, value))
    return found - {""}


def _values(name: str, value: str) -> Iterator[str]:
    """Yield the secrets in one variable. A variable of fsspec may hold an object in JSON."""
    if _SECRET.search(name) and len(value) >= _SHORTEST:
        yield value
    if name.startswith("FSSPEC_") and value.startswith("{"):
        try:
            inner = json.loads(value)
        except ValueError:
            return
        for key, each in inner.items():
            yield from _values(str(key), each if isinstance(each, str) else "")


def split_path(path: str) -> list[str]:
    """Split a path of a place into its names, none of which leads out of the place."""
    names = path.split("/") if path else []
    if any(name in {"", ".", ".."} or "\0" in name for name in names):
        raise UsageError(f"{path!r} is no path within a place")
    return names
