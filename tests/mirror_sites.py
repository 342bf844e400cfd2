"""Real servers on loopback as places of a run, each with faults in front of it, and with what lies behind them.

A site is started by `with`. `url` and `environment` are what a run is told, `sound` says what an observer has seen
who looks behind the faults, and `contents` brings what lies there now into a local folder.
"""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from xml.etree import ElementTree as ET

import s3_faults
from fault_plans import Plan
from s3_faults import wrong

LOOK_S = 0.02
BUCKET = "bucket"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Looks(NamedTuple):
    """What an observer saw: how often a copy with a manifest was looked at, and what was wrong."""

    count: int
    problems: list[str]


class Site(Protocol):
    name: str
    url: str
    plan: Plan
    environment: Mapping[str, str]
    disk: list[list[str]]  # for the worker: a plan and the folder below which it strikes

    def looks(self) -> Looks: ...
    def contents(self, into: Path) -> Path: ...


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def wait_for_port(port: int, process: "subprocess.Popen[Any]", limit_s: float = 60.0) -> None:
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise AssertionError(f"{process.args!r} ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError(f"port {port} was never opened")


@contextmanager
def moto():
    """Moto's S3; the port."""
    port = free_port()
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environment = os.environ | {"S3_UPLOAD_PART_MIN_SIZE": "1"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for_port(port, process)
            yield port
        finally:
            process.kill()


class S3Site:
    """Moto behind a proxy that makes faults, and that is started again whenever a fault has killed it."""

    disk: list[list[str]] = []

    def __init__(self, behind: int, plan: Plan, name: str = "s3", *, checksums: bool = True) -> None:
        self.name, self.plan, self._behind = name, plan, behind
        self._options = ["checksums"] * checksums
        self.url, self.port = f"s3://{BUCKET}/{name}", free_port()
        self.environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep)
        self._up = threading.Event()
        self.kills = 0

    def __enter__(self) -> "S3Site":
        self._ask("PUT", f"/{BUCKET}")
        self._keeper.start()
        assert self._up.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._keeper.join()

    def _keep(self) -> None:
        words = [sys.executable, s3_faults.__file__, str(self.port), str(self._behind), str(self.plan.folder)]
        words += self._options
        while not self._over.is_set():
            with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                if process.stdout.readline():
                    self._up.set()
                while process.poll() is None and not self._over.wait(LOOK_S):
                    pass
                process.stdin.close()
                self.kills += process.wait() == -9

    def looks(self) -> Looks:
        lines = [json.loads(line) for line in (self.plan.folder / "seen.jsonl").read_text().splitlines()]
        return Looks(len(lines), [f"{each['copy']}: {each['problem']}" for each in lines if each["problem"]])

    def contents(self, into: Path) -> Path:
        listed = self._ask("GET", f"/{BUCKET}?list-type=2&max-keys=100000&prefix={self.name}/")
        for key in (node.text or "" for node in ET.fromstring(listed).iter() if node.tag.endswith("}Key")):
            path = into / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._ask("GET", f"/{BUCKET}/{key}"))
        return into / self.name

    def _ask(self, method: str, target: str) -> bytes:
        client = http.client.HTTPConnection("127.0.0.1", self._behind, timeout=30)
        try:
            client.request(method, target, headers=s3_faults.SIGNED)
            answer = client.getresponse()
            body = answer.read()
            assert answer.status == 200, (target, answer.status, body)
            return body
        finally:
            client.close()


class Observer:
    """Looks at the copies below a folder again and again: one with a manifest has all its files, each of them right."""

    def __init__(self, root: Path) -> None:
        self._root, self._over = root, threading.Event()
        self._known: dict[Path, object] = {}
        self._count, self._problems = 0, list[str]()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Observer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            for manifest in self._root.glob("checkpoints/*/*/manifest.json"):
                self._look(manifest)

    def _look(self, manifest: Path) -> None:
        try:
            facts = [(path, path.stat().st_mtime_ns, path.stat().st_ino) for path in sorted(manifest.parent.rglob("*"))]
        except OSError:
            return
        if self._known.get(manifest) == facts:
            return
        problem = wrong(manifest.parent)
        if problem and not manifest.exists():
            return  # it was removed meanwhile, its manifest first
        self._known[manifest] = facts
        self._count += 1
        self._problems += [f"{manifest.parent}: {problem}"] if problem else []

    def looks(self) -> Looks:
        return Looks(self._count, [*self._problems])


class FolderSite:
    """A folder whose disk fails inside the worker."""

    environment: Mapping[str, str] = {}

    def __init__(self, root: Path, plan: Plan, name: str = "folder") -> None:
        self.name, self.plan, self.root = name, plan, root
        self.url = str(root)
        self.disk = [[str(plan.folder), str(root)]]
        self._observer = Observer(root)

    def __enter__(self) -> "FolderSite":
        self._observer.__enter__()
        return self

    def __exit__(self, *given: object) -> None:
        self._observer.__exit__(*given)

    def looks(self) -> Looks:
        return self._observer.looks()

    def contents(self, into: Path) -> Path:
        return Path(shutil.copytree(self.root, into / self.name))
