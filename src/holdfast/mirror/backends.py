"""Backends: which one serves the place of a URL.
The libraries that it needs are imported with it.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError
from .folder import Folder
from .place import LOCAL, Place, hidden_in, scheme_of, shown


def open_place(url: str, *, private: bool = False) -> Place:
    """Return the place of a URL or of a local folder. Nothing is connected yet.

    With `private` a folder keeps all other users out; who may read elsewhere is the server's
    matter.

    Raises:
        UsageError: no such kind of place, or its package is not installed.
    """
    if hidden_in(url):
        raise UsageError(
            f"{shown(url)}: write /, ?, # and @ in a password or a path as %2F, %3F, %23 and %40"
        )
    if "::" in url:
        raise UsageError(
            f"{shown(url)}: a chain of file systems is no "
            "place for a mirror; name the last one alone"
        )
    scheme = scheme_of(url)
    if scheme in LOCAL:
        return Folder(Path(shown(url)), private=private)
    try:
        if scheme in {"s3", "s3a"}:
            missing = "holdfast[s3]"
            from .s3 import S3

            return S3(url)
        if scheme in {"sftp", "ssh"}:
            missing = "holdfast[sftp]"
            from .sftp import Sftp

            return Sftp(url)
        missing = "fsspec and its package for this kind"
        from .other import Other

        return Other(url)
    except ModuleNotFoundError as error:
        raise UsageError(f"{shown(url)}: {error.name} is missing; install {missing}") from None
