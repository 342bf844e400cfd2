"""Notices: a cloud's notice that it takes this machine back,
polled between two steps. A look does not wait.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from threading import Thread
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

LIMIT_S = 2.0  # for one answer; the server is on the machine itself
EVERY_S = 5.0  # what AWS recommends
ROUND_TRIP_S = 0.05  # the time after which an answer may have arrived
_MOST_BYTES = 1 << 16
_HERE = "http://169.254.169.254"  # the metadata service of all these clouds
_DICE = random.Random()  # noqa: S311  jitter, no cryptography; not the user's generator, which is run state


class Cloud(NamedTuple):
    """The address to query, and which answer means that the end is near."""

    url: str
    headers: Mapping[str, str]
    soon: Callable[[int, str], bool]  # takes the status and the body
    token_url: str = ""  # queried first, by PUT, for a token
    token_headers: Mapping[str, str] = {}
    token_header: str = ""  # the header that carries the token


def _body_matches(pattern: str) -> Callable[[int, str], bool]:
    return lambda status, body: status == 200 and re.search(pattern, body) is not None


# Sources. AWS: EC2 User Guide, "Spot Instance interruption notices" and IMDSv2: 404 until there is
# a notice, which comes two minutes ahead. GCP: Compute Engine, "Handle preemption": TRUE, 30 s
# ahead. Azure: "Scheduled Events for Linux VMs": Preempt, 30 s ahead.
CLOUDS: Mapping[str, Cloud] = {
    "aws": Cloud(
        f"{_HERE}/latest/meta-data/spot/instance-action",
        {},
        _body_matches(r'"action"\s*:\s*"(terminate|stop|hibernate)"'),
        f"{_HERE}/latest/api/token",
        {"X-aws-ec2-metadata-token-ttl-seconds": "21600"},
        "X-aws-ec2-metadata-token",
    ),
    "gcp": Cloud(
        f"{_HERE}/computeMetadata/v1/instance/preempted",
        {"Metadata-Flavor": "Google"},
        _body_matches(r"\A\s*TRUE\s*\Z"),
    ),
    "azure": Cloud(
        f"{_HERE}/metadata/scheduledevents?api-version=2020-07-01",
        {"Metadata": "true"},
        _body_matches(r'"EventType"\s*:\s*"(Preempt|Terminate)"'),
    ),
}

# Variables that change the service's address for a cloud's own tools; we follow them. Sources: the
# AWS SDKs' reference; google-auth.
MOVED_BY: Mapping[str, str] = {
    "aws": "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "gcp": "GCE_METADATA_HOST",
}


def cloud(name: str, environment: Mapping[str, str] = os.environ) -> Cloud:
    """Return the cloud `name`, a key of `CLOUDS`; the environment may change the address of its
    metadata service.
    """
    found, place = CLOUDS[name], environment.get(MOVED_BY.get(name, ""), "").rstrip("/")
    if not place:
        return found
    address = place if "://" in place else f"http://{place}"
    return found._replace(
        url=found.url.replace(_HERE, address, 1),
        token_url=found.token_url.replace(_HERE, address, 1),
    )


class Notices:
    """Checks whether the cloud takes this machine back; `look` is called at safe points and returns
    at once.

    notices = Notices(CLOUDS["aws"])
    for batch in run.batches(loader):
        ...
        if notices.look():
            signal.raise_signal(signal.SIGTERM)  # the next safe point saves, and ends with 75
    """

    def __init__(self, cloud: Cloud, every_s: float = EVERY_S) -> None:
        self._cloud, self._every_s = cloud, every_s
        self._next_s = time.monotonic()
        self._token = ""
        self._asking: _HttpRequest | None = None
        self._for_token = False
        self.soon = False
        self.complaint = ""  # the last problem, for diagnosis when no notice comes

    def look(self) -> bool:
        """Whether a notice has come. Sends a request when one is due;
        a later call reads its answer.
        """
        if self.soon:
            return True
        if self._asking is None:
            if time.monotonic() < self._next_s:
                return False
            self._send_request()
        if self._asking is not None and (answer := self._asking.answer) is not None:
            self._asking = None
            self._handle_answer(answer)
        return self.soon

    @property
    def due_s(self) -> float:
        """Return when, in monotonic seconds, the next `look` may find something."""
        return time.monotonic() + ROUND_TRIP_S if self._asking is not None else self._next_s

    def _send_request(self) -> None:
        self._next_s = time.monotonic() + self._every_s * _DICE.uniform(0.8, 1.2)
        cloud = self._cloud
        self._for_token = bool(cloud.token_url) and not self._token
        if self._for_token:
            self._asking = _HttpRequest("PUT", cloud.token_url, cloud.token_headers)
        else:
            token = {cloud.token_header: self._token} if self._token else {}
            self._asking = _HttpRequest("GET", cloud.url, {**cloud.headers, **token})

    def _handle_answer(self, answer: _Answer) -> None:
        self.complaint = answer.error
        if self._for_token:
            self._token = (
                answer.body.strip()
                if answer.status == 200 and "\n" not in answer.body.strip()
                else ""
            )
            if self._token:
                self._send_request()
            return
        if answer.status == 401:  # the token has expired
            self._token = ""
        self.soon = self._cloud.soon(answer.status, answer.body)


class _Answer(NamedTuple):
    status: int
    body: str
    error: str = ""


class _HttpRequest:
    """One HTTP request, in a thread of its own: nobody waits for its answer."""

    def __init__(self, method: str, url: str, headers: Mapping[str, str]) -> None:
        self.answer: _Answer | None = None  # None while the request is in progress
        Thread(target=self._run, args=[method, urlsplit(url), headers], daemon=True).start()

    def _run(self, method: str, parts: SplitResult, headers: Mapping[str, str]) -> None:
        from http.client import HTTPConnection, HTTPException  # it loads much, and few need it

        try:
            with closing(HTTPConnection(parts.netloc, timeout=LIMIT_S)) as connection:
                connection.request(method, urlunsplit(("", "", *parts[2:])), headers=headers)
                response = connection.getresponse()
                self.answer = _Answer(
                    response.status, response.read(_MOST_BYTES).decode(errors="replace")
                )
        except TimeoutError:
            self.answer = _Answer(0, "", f"no answer within {LIMIT_S:g} s")
        except OSError as error:
            self.answer = _Answer(0, "", error.strerror or str(error))
        except HTTPException:
            self.answer = _Answer(0, "", "no answer in HTTP")
