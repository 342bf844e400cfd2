"""A cloud's metadata service on loopback, for tests of spot notices; conftest.py makes `service` known."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Server(ThreadingHTTPServer):
    asked: list[Any]
    answers: Callable[..., tuple[int, str]]


class Service(BaseHTTPRequestHandler):
    """What `answers` says for a path: status and body, or seconds to be silent."""

    server: Server

    def do_GET(self):
        asked = (self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        self.server.asked.append(asked)
        status, body = self.server.answers(*asked)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    do_PUT = do_GET  # noqa: N815  the server looks for that name

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    server = Server(("127.0.0.1", 0), Service)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
