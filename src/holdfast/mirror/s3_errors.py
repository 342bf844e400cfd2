"""A table of the meaning of failed calls to S3."""

from __future__ import annotations

import errno
from typing import Any

from botocore import exceptions

from .place import Full, Refused, Silent, redact_error

_AGAIN = {  # answers below 500 that mean: try later
    "BadDigest",  # damaged on the way
    "ConditionalRequestConflict",
    "IncompleteBody",
    "OperationAborted",
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "XAmzContentSHA256Mismatch",
}
_UNREACHED = (
    exceptions.ConnectionError,
    exceptions.HTTPClientError,
    exceptions.IncompleteReadError,
)
_FULL = {"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull", "507"}
_ADVICE = {
    "AccessDenied": "give these credentials the right to list, read, write and delete there",
    "403": "give these credentials the right to list, read, write and delete there",
    "ExpiredToken": "renew the credentials",
    "InvalidAccessKeyId": "check AWS_ACCESS_KEY_ID or the profile",
    "NoSuchBucket": "create the bucket, or correct the URL",
    "RequestTimeTooSkewed": "set this machine's clock",
    "SignatureDoesNotMatch": "check AWS_SECRET_ACCESS_KEY or the profile",
}


def translate_error(error: Exception, shown: str) -> Exception:
    """Return the place's error for an error of the library."""
    if isinstance(error, Silent | Refused | Full):
        return error
    answer = _server_answer(error)
    if answer is not None:
        return _translate_answer(answer, shown)
    if isinstance(error, exceptions.BotoCoreError) and not isinstance(error, _UNREACHED):
        return Refused(
            f"{shown}: {redact_error(error)}; check the credentials "
            "and the profile in the environment or ~/.aws"
        )
    return Silent(f"{shown}: {redact_error(error)}")


def _server_answer(error: BaseException | None) -> dict[str, Any] | None:
    """The server's answer, which s3fs hides below an error of its own."""
    while error is not None and not isinstance(error, exceptions.ClientError):
        error = error.__cause__
    return dict(error.response) if error is not None else None


def _translate_answer(answer: dict[str, Any], shown: str) -> Exception:
    fault = answer.get("Error", {})
    code = str(fault.get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = (
        f"{shown}: {redact_error(': '.join(filter(None, [code, str(fault.get('Message', ''))])))}"
    )
    if code in _FULL or status == 507:
        return Full(f"{text}; make room, or let its rule keep fewer copies")
    if code in _AGAIN or status >= 500 or status in {408, 409, 429}:
        return Silent(text)
    if status == 412 or code == "PreconditionFailed":
        return FileExistsError(errno.EEXIST, text)
    if status == 404 and code != "NoSuchBucket":
        return FileNotFoundError(errno.ENOENT, text)
    return Refused(f"{text}; {_ADVICE[code]}" if code in _ADVICE else text)
