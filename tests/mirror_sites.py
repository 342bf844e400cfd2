"""Real servers on loopback as places of a run, each with faults in front of it, and with what lies behind them.

A site is started by `with`. `url` and `environment` are what a run is told, `sound` says what an observer has seen
who looks behind the faults, and `contents` brings what lies there now into a local folder.
"""

import http.client
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, Self
from xml.etree import ElementTree as ET

import s3_faults
import tcp_faults
from fault_plans import Plan
from s3_faults import wrong
from servers import S3Server, SftpServer, free_port

LOOK_S = 0.02
BUCKET = "bucket"  # which the server has made


class Looks(NamedTuple):
    """What an observer saw: how often a copy with a manifest was looked at, and what was wrong."""

    made: int
    problems: list[str]


class Site(Protocol):
    name: str
    url: str
    plan: Plan
    environment: Mapping[str, str]
    disk: list[list[str]]  # for the worker: a plan and the folder below which it strikes

    def looks(self) -> Looks: ...
    def contents(self, into: Path) -> Path: ...


class S3Site:
    """Moto behind a proxy that makes faults, and that is started again whenever a fault has killed it."""

    def __init__(self, server: S3Server, plan: Plan, name: str = "s3", *, checksums: bool = True) -> None:
        self.name, self.plan, self._behind = name, plan, server.port
        self._options = ["checksums"] * checksums
        self.disk: list[list[str]] = []
        self.url, self.port = f"s3://{BUCKET}/{name}", free_port()
        self.environment: Mapping[str, str] = {
            **server.environment,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
        }
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep)
        self._up = threading.Event()
        self.kills = 0

    def __enter__(self) -> Self:
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

    def __enter__(self) -> Self:
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

    def __init__(self, root: Path, plan: Plan, name: str = "folder") -> None:
        self.environment: Mapping[str, str] = {}
        self.name, self.plan, self.root = name, plan, root
        self.url = str(root)
        self.disk = [[str(plan.folder), str(root)]]
        self._observer = Observer(root)

    def __enter__(self) -> Self:
        self._observer.__enter__()
        return self

    def __exit__(self, *given: object) -> None:
        self._observer.__exit__(*given)

    def looks(self) -> Looks:
        return self._observer.looks()

    def contents(self, into: Path) -> Path:
        self.root.mkdir(parents=True, exist_ok=True)  # where nothing has come yet, nothing is held
        return Path(shutil.copytree(self.root, into / self.name))


class SftpSite(FolderSite):
    """OpenSSH behind a proxy that cuts and stalls its connections, and has it killed and started again."""

    def __init__(self, server: SftpServer, plan: Plan, name: str = "sftp") -> None:
        super().__init__(server.files / name, plan, name)
        self.disk = []
        self._server = server
        self._proxy = tcp_faults.Proxy(tcp_faults.Server(server.port, server.kill, self._start), plan)
        self.environment = server.environment
        self.url = f"sftp://127.0.0.1:{self._proxy.port}{self.root}"
        self._know()

    def _start(self) -> None:
        self._server.start()
        self._know()

    def _know(self) -> None:
        """The server's key is known at the proxy's port as well; a server that starts writes its own line."""
        known = self._server.home / ".ssh/known_hosts"
        known.write_text(known.read_text().replace(f":{self._server.port} ", f":{self._proxy.port} "))

    def __exit__(self, *given: object) -> None:
        self._proxy.__exit__(*given)
        super().__exit__(*given)
