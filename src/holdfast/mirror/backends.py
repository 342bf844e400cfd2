"""Backends: which one serves the place of a URL.
The libraries that it needs are imported with it.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError
from .folder import FolderPlace
from .place import LOCAL, Place, redact_url, scheme_of, unquoted_credentials


def open_place(url: str, *, private: bool = False) -> Place:
    """Return the place of a URL or of a local folder. Nothing is connected yet.

    With `private` a folder keeps all other users out; who may read elsewhere is the server's
    matter.

    Raises:
        UsageError: no such kind of place, or its package is not installed.
    """
    if unquoted_credentials(url):
        raise UsageError(
            f"{redact_url(url)}: write /, ?, # and @ in a password or a path "
            "as %2F, %3F, %23 and %40"
        )
    if "::" in url:
        raise UsageError(
            f"{redact_url(url)}: a chain of file systems is no "
            "place for a mirror; name the last one alone"
        )
    scheme = scheme_of(url)
    if scheme in LOCAL:
        return FolderPlace(Path(redact_url(url)), private=private)
    try:
        if scheme in {"s3", "s3a"}:
            missing = "holdfast[s3]"
            from .s3 import S3Place

            return S3Place(url)
        if scheme in {"sftp", "ssh"}:
            missing = "holdfast[sftp]"
            from .sftp import SftpPlace

            return SftpPlace(url)
        missing = "fsspec and its package for this kind"
        from .other import FsspecPlace

        return FsspecPlace(url)
    except ModuleNotFoundError as error:
        raise UsageError(f"{redact_url(url)}: {error.name} is missing; install {missing}") from None
