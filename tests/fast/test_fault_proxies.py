"""The proxies that make the mirrors' faults: a client sees each fault as its name says, once, and it is on record."""

import http.client
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import s3_faults
import tcp_faults
from fault_plans import MOST_PASS, Fault, Plan, counts, draw

BODY = bytes(range(200)) * 20


class Bucket(BaseHTTPRequestHandler):
    """Just enough of a store of objects."""

    protocol_version = "HTTP/1.1"
    held: dict[str, bytes]

    def do_PUT(self):
        self.held[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def do_GET(self):
        self._answer(200 if self.path in self.held else 404, self.held.get(self.path, b""))

    do_HEAD = do_GET  # noqa: N815 -- the server looks for that name

    def do_DELETE(self):
        self._answer(204, bytes(self.held.pop(self.path, b"")[:0]))

    def _answer(self, status, body):
        self.send_response_only(status)
        self.send_header("x-amz-checksum-crc64nvme", "right")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def serving(server):
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def bucket():
    held = {"/b/there": BODY}
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), type("Holding", (Bucket,), {"held": held}))) as port:
        yield port, held


def plan_of(path, *faults):
    plan = Plan.make(path / "plan", [Fault(number, request, what, 0) for number, (request, what) in enumerate(faults)])
    plan.arm()
    return plan


def asked(port, method, target, body=b"", timeout_s=5.0):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        client.request(method, target, body=body)
        answer = client.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        client.close()


@pytest.mark.parametrize("what", [*s3_faults.REFUSED])
def test_a_refused_request_is_not_done(tmp_path, bucket, what):
    port, held = bucket
    plan = plan_of(tmp_path, ("PutObject", what))
    with serving(s3_faults.Proxy(0, port, plan)) as front:
        status, body, _ = asked(front, "PUT", "/b/new", BODY)
        assert (str(status), True) == (what.split()[0], b"<Code>" in body)
        assert "/b/new" not in held
        assert asked(front, "PUT", "/b/new", BODY)[0] == 200
    assert held["/b/new"] == BODY
    assert (plan.left(), len(plan.strokes())) == ([], 1)


@pytest.mark.parametrize("what", [*s3_faults.DONE_AND])
def test_a_done_request_may_be_answered_otherwise(tmp_path, bucket, what):
    port, held = bucket
    plan = plan_of(tmp_path, ("PutObject", what))
    with serving(s3_faults.Proxy(0, port, plan)) as front:
        status, body, _ = asked(front, "PUT", "/b/new", BODY)
    assert (str(status), True) == (what.split()[0], b"<Error>" in body)
    assert held["/b/new"] == BODY


@pytest.mark.parametrize(
    ("what", "method", "done"),
    [
        ("reset before it is done", "PUT", False),
        ("reset after it was done", "PUT", True),
        ("truncated upload", "PUT", False),
        ("truncated answer", "GET", False),
        ("no answer", "PUT", False),
    ],
)
def test_a_connection_may_end_anywhere(tmp_path, bucket, what, method, done):
    port, held = bucket
    plan = plan_of(tmp_path, ({"PUT": "PutObject", "GET": "GetObject"}[method], what))
    with serving(s3_faults.Proxy(0, port, plan)) as front:
        target, body = ("/b/new", BODY) if method == "PUT" else ("/b/there", b"")
        with pytest.raises((OSError, http.client.HTTPException)):
            asked(front, method, target, body, timeout_s=0.3)
        assert done == ("/b/new" in held)
        assert asked(front, method, target, body)[0] == 200
    assert len(plan.strokes()) == 1


def test_answers_may_lie_or_be_late(tmp_path, bucket, monkeypatch):
    monkeypatch.setattr(s3_faults, "SLOW_S", 0.1)
    port, held = bucket
    lies = [("HeadObject", "wrong checksum"), ("GetObject", "other bytes returned"), ("PutObject", "slow link")]
    lies += [("PutObject", "other bytes kept")]
    plan = plan_of(tmp_path, *lies)
    with serving(s3_faults.Proxy(0, port, plan)) as front:
        assert asked(front, "HEAD", "/b/there")[2]["x-amz-checksum-crc64nvme"] != "right"
        assert asked(front, "HEAD", "/b/there")[2]["x-amz-checksum-crc64nvme"] == "right"
        assert asked(front, "GET", "/b/there")[1] != BODY
        assert asked(front, "GET", "/b/there")[1] == BODY
        began = time.monotonic()
        assert asked(front, "PUT", "/b/new", BODY)[0] == 200
        assert time.monotonic() - began >= 0.1
        assert (held["/b/new"], asked(front, "PUT", "/b/new", BODY)[0]) == (BODY, 200)
    assert held["/b/new"] != BODY
    assert plan.left() == []


def test_what_cannot_be_struck_here_stays_in_the_plan(tmp_path, bucket):
    """An empty body cannot be truncated: such a fault is on no record, and waits for the next request."""
    plan = plan_of(tmp_path, ("PutObject", "truncated upload"), ("GetObject", "truncated answer"))
    with serving(s3_faults.Proxy(0, bucket[0], plan)) as front:
        assert asked(front, "PUT", "/b/new")[0] == 200
        assert asked(front, "GET", "/b/none")[0] == 404
    assert (len(plan.left()), plan.strokes()) == (2, [])


def test_the_front_is_killed_and_goes_on_with_its_plan(tmp_path, bucket):
    """The fault was on record before the kill; the next process on that port strikes what is left."""
    plan = plan_of(tmp_path, ("PutObject", "server killed"), ("PutObject", "503 SlowDown"))
    statuses = []
    for _ in range(2):
        words = [sys.executable, s3_faults.__file__, "0", str(bucket[0]), str(plan.folder)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as front:
            port = int(front.stdout.readline().split()[1])
            try:
                statuses.append(asked(port, "PUT", "/b/new", BODY)[0])
            except (OSError, http.client.HTTPException):
                statuses.append(0)
            front.stdin.close()
            assert front.wait() == (0 if statuses[-1] else -9)
    assert (statuses, plan.left()) == ([0, 503], [])


@pytest.mark.parametrize(
    ("method", "target", "headers", "kind"),
    [
        ("PUT", "/b/k", {}, "PutObject"),
        ("PUT", "/b/k", {"If-None-Match": "*"}, "Create"),
        ("PUT", "/b/k", {"x-amz-copy-source": "b/o"}, "CopyObject"),
        ("PUT", "/b/k?partNumber=1&uploadId=u", {}, "UploadPart"),
        ("POST", "/b/k?uploads", {}, "CreateMultipart"),
        ("POST", "/b/k?uploadId=u", {}, "CompleteMultipart"),
        ("POST", "/b?delete", {}, "DeleteObjects"),
        ("DELETE", "/b/k", {}, "DeleteObject"),
        ("DELETE", "/b/k?uploadId=u", {}, "AbortMultipart"),
        ("HEAD", "/b/k/l", {}, "HeadObject"),
        ("GET", "/b?list-type=2&prefix=k", {}, "List"),
        ("GET", "/b/k/l", {}, "GetObject"),
    ],
)
def test_requests_have_the_names_of_the_documentation(method, target, headers, kind):
    assert kind == s3_faults.kind_of(method, target, headers)


class Echo:
    """A TCP server that sends back what it gets; it can be killed."""

    def __init__(self):
        self.port, self.deaths, self.ends = 0, 0, []
        self.start()

    def start(self):
        self.listening = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self._serve, args=(self.listening,), daemon=True).start()

    def _serve(self, listening):
        while True:
            try:
                end, _ = listening.accept()
            except OSError:
                return
            self.ends.append(end)
            threading.Thread(target=self._echo, args=(end,), daemon=True).start()

    def _echo(self, end):
        with end:
            try:
                while data := end.recv(1 << 16):
                    end.sendall(data)
            except OSError:
                pass

    def kill(self):
        self.deaths += 1
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        for end in self.ends:
            end.close()


def echoed(port, data, timeout_s=0.5):
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as client:
        client.sendall(data)
        found = b""
        while len(found) < len(data) and (more := client.recv(1 << 16)):
            found += more
        return found


@pytest.mark.parametrize("what", tcp_faults.FAULTS)
def test_each_fault_of_a_connection_strikes_one_connection(tmp_path, what):
    echo = Echo()
    plan = plan_of(tmp_path, ("connect" if what == "refused" else "bytes", what))
    with tcp_faults.Proxy(tcp_faults.Server(echo.port, echo.kill, echo.start), plan) as proxy:
        began = time.monotonic()
        try:
            found = echoed(proxy.port, BODY)
        except OSError:
            found = b""
        assert (found == BODY) == (what == "slow link")
        assert (len(found) == len(BODY)) == (what in ("slow link", "a bit turned over"))
        assert (time.monotonic() - began > 0.05) or what not in ("slow link", "no answer", "server killed")
        assert echo.deaths == (what == "server killed")
        assert echoed(proxy.port, BODY, 5) == BODY
    echo.kill()
    assert (plan.left(), len(plan.strokes())) == ([], 1)


def test_a_plan_is_its_seeds_and_counts_what_was_struck(tmp_path):
    wanted = {"PutObject": {"503 SlowDown": 3, "no answer": 2}, "List": {"503 SlowDown": 1}}
    assert draw(1, wanted) == draw(1, wanted) != draw(2, wanted)
    plan = Plan.make(tmp_path / "p", draw(1, wanted))
    assert plan.due("List") is None, "not armed yet"
    plan.arm()
    struck = [fault for _ in range(MOST_PASS + 2) if (fault := plan.due("List"))]
    plan.struck(*struck)
    assert {"PutObject"} == {fault.request for fault in plan.left()}
    assert [("A mirror (s3): 503 SlowDown", 4, 1), ("A mirror (s3): no answer", 2, 0)] == [*counts({"s3": plan})]
    assert Plan(tmp_path / "p").left() == plan.left()
