"""A proxy in front of an S3 server that makes faults by a plan, each of them as a real S3 or a real network makes it.

    s3_faults.py PORT UPSTREAM_PORT FOLDER [checksums]

FOLDER holds the plan (tests/fault_plans.py). After each request that changed a copy the proxy looks, behind itself,
whether that copy is sound, and writes what it saw into FOLDER/seen.jsonl: one line for each look.

With `checksums` it says the CRC64NVME of the bytes that the server holds, as S3 does and moto does not.
"""

import base64
import http.client
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET

from fault_plans import Fault, Plan
from holdfast.errors import HoldfastError
from holdfast.store.checkpoint import Checkpoint

SLOW_S = 0.6
SILENT_S = 60.0  # at most so long is somebody kept waiting who never gives up
SIGNED = {  # moto asks whether somebody signed, and not for the signature
    "Authorization": "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request, Signature=0"
}
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect", "te", "upgrade"}

CODES = {
    "SlowDown": "Please reduce your request rate.",
    "InternalError": "We encountered an internal error. Please try again.",
    "ExpiredToken": "The provided token has expired.",
    "BadDigest": "The checksum you specified did not match the calculated checksum.",
    "ConditionalRequestConflict": "A conflicting operation occurred during the conditional request.",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold",
    "RequestTimeout": "Your socket connection to the server was not read from or written to within the timeout.",
}


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


def error(status: int, code: str) -> Answer:
    text = f"<Error><Code>{code}</Code><Message>{CODES[code]}</Message><RequestId>F</RequestId></Error>"
    return Answer(status, [("Content-Type", "application/xml")], text.encode())


def kind_of(method: str, target: str, headers: Any) -> str:
    """The name of an S3 request, as its documentation has it."""
    asked = parse_qs(urlsplit(target).query, keep_blank_values=True)
    in_bucket = urlsplit(target).path.strip("/").count("/") == 0
    copying = "x-amz-copy-source" in headers
    if method == "PUT" and "partNumber" in asked:
        return "UploadPartCopy" if copying else "UploadPart"
    if method == "PUT":
        create = headers.get("If-None-Match") is not None
        return "CopyObject" if copying else "Create" if create else "PutObject"
    if method == "POST":
        known = {"uploads": "CreateMultipart", "uploadId": "CompleteMultipart", "delete": "DeleteObjects"}
        return next((name for key, name in known.items() if key in asked), "Other")
    if method == "DELETE":
        return "AbortMultipart" if "uploadId" in asked else "DeleteObject"
    if method == "HEAD":
        return "HeadBucket" if in_bucket else "HeadObject"
    return "List" if in_bucket else "GetObject"


REFUSED = {  # answered without being done
    "503 SlowDown": error(503, "SlowDown"),
    "429 SlowDown": error(429, "SlowDown"),
    "500 InternalError": error(500, "InternalError"),
    "403 ExpiredToken": error(403, "ExpiredToken"),
    "400 BadDigest": error(400, "BadDigest"),
    "400 RequestTimeout": error(400, "RequestTimeout"),
    "409 conflict": error(409, "ConditionalRequestConflict"),
}
DONE_AND = {  # done, and the answer is another
    "500 after it was done": error(500, "InternalError"),
    "412 of its own object": error(412, "PreconditionFailed"),
    "200 with an error inside": error(200, "InternalError"),
}


class Proxy(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, upstream: int, plan: Plan, *, checksums: bool = False) -> None:
        self.upstream, self.plan, self.checksums = upstream, plan, checksums
        self._seen = os.open(plan.folder / "seen.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        super().__init__(("127.0.0.1", port), Request)

    def say(self, **facts: Any) -> None:
        os.write(self._seen, (json.dumps(facts) + "\n").encode())

    def handle_error(self, *_: object) -> None:
        """A client that goes away is no news."""


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy
    behind: http.client.HTTPConnection | None = None

    def handle_one(self) -> None:
        kind = kind_of(self.command, self.path, self.headers)
        fault = self.server.plan.due(kind)
        if fault is None:
            self._give(self._done(self._body()))
        else:
            FAULTS[fault.what](self, fault)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one  # noqa: N815 -- the server looks for these names

    def finish(self) -> None:
        super().finish()
        if self.behind is not None:
            self.behind.close()

    def log_message(self, *_: object) -> None:
        pass

    # -- its parts --

    def _body(self, *, pause_s: float = 0.0) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            pieces = []
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(pieces)
        size = int(self.headers.get("Content-Length") or 0)
        pieces = []
        for start in range(0, size, max(1, size // 8) if pause_s else max(1, size)):
            pieces.append(self.rfile.read(min(size - start, max(1, size // 8) if pause_s else size)))
            time.sleep(pause_s / 8)
        return b"".join(pieces)

    def _done(self, body: bytes) -> Answer:
        """Have it done, and look at the copy that it changed."""
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        answer = self._ask(self.command, self.path, body, headers)
        if self.command in ("PUT", "POST", "DELETE") and answer.status < 300:
            self._look_at_copies(body)
        if self.server.checksums and answer.status == 200 and self.headers.get("x-amz-checksum-mode") == "ENABLED":
            kept = [(name, value) for name, value in answer.headers if not name.lower().startswith("x-amz-checksum-")]
            return answer._replace(headers=kept + checksum(self._ask("GET", self.path).body))
        return answer

    def _ask(self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        if self.behind is None:
            self.behind = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=60)
        told = (SIGNED if headers is None else headers) | {"Content-Length": str(len(body))}
        self.behind.request(method, target, body=body or None, headers=told)
        got = self.behind.getresponse()
        return Answer(got.status, got.getheaders(), got.read())

    def _give(self, answer: Answer, *, only: float = 1.0, pause_s: float = 0.0) -> None:
        """Answer; with `only`, with this share of the promised bytes."""
        self.send_response_only(answer.status)
        size = len(answer.body)
        for name, value in answer.headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                size = int(value)
            elif name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command != "HEAD":
            part = answer.body[: int(len(answer.body) * only)]
            for start in range(0, len(part), max(1, len(part) // 8) if pause_s else max(1, len(part))):
                self.wfile.write(part[start : start + (max(1, len(part) // 8) if pause_s else len(part))])
                time.sleep(pause_s / 8)

    def _reset(self) -> None:
        """The connection ends without a farewell."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())

    # -- what it looks at --

    def _look_at_copies(self, body: bytes) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/")
        bucket, _, key = path.partition("/")
        keys = [key] if key else [node.text or "" for node in _found(body, "Key")]
        for prefix in {copy for each in keys if (copy := copy_of(each))}:
            self._look(bucket, prefix)

    def _look(self, bucket: str, prefix: str) -> None:
        """A copy with a manifest has all its files, each of them right."""
        manifest = f"/{bucket}/{prefix}/manifest.json"
        if self._is_missing(manifest):
            return
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / prefix.rpartition("/")[2]
            for key in self._keys(bucket, prefix):
                got = self._ask("GET", f"/{bucket}/{key}")
                if got.status == 200:
                    path = place / key.removeprefix(f"{prefix}/")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(got.body)
            problem = wrong(place)
        if problem and self._is_missing(manifest):
            return  # it is being removed, its manifest first
        self.server.say(copy=prefix, problem=problem)

    def _is_missing(self, target: str) -> bool:
        status = self._ask("HEAD", target).status
        if status not in {200, 404}:
            self.server.say(copy=target, problem=f"could not be looked at: {status}")
        return status != 200

    def _keys(self, bucket: str, prefix: str) -> list[str]:
        listed = self._ask("GET", f"/{bucket}?list-type=2&prefix={prefix}/")
        return [node.text or "" for node in _found(listed.body, "Key")]


def _found(body: bytes, name: str) -> list[ET.Element]:
    try:
        return [node for node in ET.fromstring(body).iter() if node.tag.rpartition("}")[2] == name]
    except ET.ParseError:
        return []


def copy_of(key: str) -> str | None:
    """The prefix of the copy that an object belongs to: .../checkpoints/<attempt>/<name>."""
    before, mark, rest = key.rpartition("checkpoints/")
    words = rest.split("/")
    return f"{before}{mark}{words[0]}/{words[1]}" if mark and len(words) > 2 else None


def checksum(data: bytes) -> list[tuple[str, str]]:
    """What S3 says of an object to those who ask."""
    from awscrt.checksums import crc64nvme

    text = base64.b64encode(crc64nvme(data).to_bytes(8, "big")).decode()
    return [("x-amz-checksum-crc64nvme", text), ("x-amz-checksum-type", "FULL_OBJECT")]


def wrong(place: Path) -> str:
    """The first thing in a copy that is not as its manifest says; empty if there is none."""
    try:
        return next((str(problem) for problem in Checkpoint(place).problems()), "")
    except HoldfastError as error:
        return str(error)


# -- the faults -----------------------------------------------------------------------------------------------------


def _refuse(request: Request, fault: Fault) -> None:
    request._body()
    request.server.plan.struck(fault)
    request._give(REFUSED[fault.what])


def _do_and_say_otherwise(request: Request, fault: Fault) -> None:
    request._done(request._body())
    request.server.plan.struck(fault)
    request._give(DONE_AND[fault.what])


def _be_silent(request: Request, fault: Fault) -> None:
    """Take the request, and never answer it."""
    request._body()
    request.server.plan.struck(fault)
    select.select([request.connection], [], [], SILENT_S)
    request._reset()


def _be_slow(request: Request, fault: Fault) -> None:
    request.server.plan.struck(fault)
    request._give(request._done(request._body(pause_s=SLOW_S)), pause_s=SLOW_S)


def _reset(request: Request, fault: Fault) -> None:
    request._body()
    request.server.plan.struck(fault)
    request._reset()


def _lose_the_answer(request: Request, fault: Fault) -> None:
    request._done(request._body())
    request.server.plan.struck(fault)
    request._reset()


def _cut_the_upload(request: Request, fault: Fault) -> None:
    """The connection ends in the middle of the body."""
    size = int(request.headers.get("Content-Length") or 0)
    if size < 2:
        request.server.plan.back(fault)
        request._give(request._done(request._body()))
        return
    request.rfile.read(size // 2)
    request.server.plan.struck(fault)
    request._reset()


def _cut_the_answer(request: Request, fault: Fault) -> None:
    answer = request._done(request._body())
    if len(answer.body) < 2 or answer.status >= 300:
        request.server.plan.back(fault)
        request._give(answer)
        return
    request.server.plan.struck(fault)
    request._give(answer, only=0.5)
    request._reset()


def _say_a_wrong_checksum(request: Request, fault: Fault) -> None:
    answer = request._done(request._body())
    names = [name for name, _ in answer.headers if _is_checksum(name)]
    if not names:
        request.server.plan.back(fault)
        request._give(answer)
        return
    request.server.plan.struck(fault)
    told = [(name, "AAAAAAAAAAA=" if _is_checksum(name) else value) for name, value in answer.headers]
    request._give(answer._replace(headers=told))


def _is_checksum(name: str) -> bool:
    return name.lower().startswith("x-amz-checksum-") and name.lower() != "x-amz-checksum-type"


def _give_other_bytes(request: Request, fault: Fault) -> None:
    answer = request._done(request._body())
    if not answer.body or answer.status >= 300:
        request.server.plan.back(fault)
        request._give(answer)
        return
    request.server.plan.struck(fault)
    at = len(answer.body) // 2
    request._give(answer._replace(body=answer.body[:at] + bytes([answer.body[at] ^ 1]) + answer.body[at + 1 :]))


def _keep_other_bytes(request: Request, fault: Fault) -> None:
    """The server takes a byte for another one, and says that all is well."""
    body = request._body()
    if not body:
        request.server.plan.back(fault)
        request._give(request._done(body))
        return
    request.server.plan.struck(fault)
    at = len(body) // 2
    request._give(request._done(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]))


def _be_killed(request: Request, fault: Fault) -> None:
    """This process, in the middle of a request; somebody starts it again on the same port."""
    if size := int(request.headers.get("Content-Length") or 0):
        request.rfile.read(size // 2)
    request.server.plan.struck(fault)
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS: dict[str, Callable[[Request, Fault], None]] = {
    **dict.fromkeys(REFUSED, _refuse),
    **dict.fromkeys(DONE_AND, _do_and_say_otherwise),
    "no answer": _be_silent,
    "slow link": _be_slow,
    "reset before it is done": _reset,
    "reset after it was done": _lose_the_answer,
    "truncated upload": _cut_the_upload,
    "truncated answer": _cut_the_answer,
    "wrong checksum": _say_a_wrong_checksum,
    "other bytes returned": _give_other_bytes,
    "other bytes kept": _keep_other_bytes,
    "server killed": _be_killed,
}


def main() -> None:
    port, upstream, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    with Proxy(port, upstream, Plan(folder), checksums="checksums" in sys.argv) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        print("ready", proxy.server_address[1], flush=True)
        sys.stdin.read()  # until whoever started it is gone


if __name__ == "__main__":
    main()
