"""Real servers on loopback for mirrors: moto's S3, and OpenSSH's sftp with keys and known hosts of its own.

    with s3_server(folder) as server: ...      # server.environment is what a client needs; server.url(name) is a place
    with sftp_server(folder) as server: ...

`pause` stops all processes of a server as a hung machine would, `resume` lets them go on, `kill` ends them at once, and
`start` starts the server again on the same port. moto has lost its objects then; `start` makes the bucket again.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import boto3
import pytest

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
SSHD = shutil.which("sshd", path=_PATH) if shutil.which("ssh-keygen") else None
needs_sshd = pytest.mark.skipif(SSHD is None, reason="not on PATH: sshd, ssh-keygen")
KEY = "AKIAHOLDFASTTESTS"
SECRET = "a-secret-of-the-tests+/of-forty-letters0"


class Server:
    """One process and all that it starts."""

    def __init__(self):
        self.port, self.environment, self.process = 0, {}, None

    def begin(self, command, **options):
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)

    def family(self):
        found, todo = [], [self.process.pid]
        while todo:
            found.append(todo.pop())
            with suppress(FileNotFoundError, ProcessLookupError):
                children = Path(f"/proc/{found[-1]}/task/{found[-1]}/children").read_text(encoding="ascii")
                todo += map(int, children.split())
        return found

    def signal(self, number):
        for each in self.family():
            with suppress(ProcessLookupError):
                os.kill(each, number)

    def pause(self):
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.signal(signal.SIGCONT)

    def kill(self):
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None

    def await_port(self):
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
            time.sleep(0.02)
        return False


class S3Server(Server):
    def start(self):
        script = Path(__file__).with_name("moto_s3.py")
        environment = {**os.environ, "MOTO_S3_CUSTOM_ENDPOINTS": "", "PYTHONWARNINGS": "ignore"}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "env": environment}
        self.begin([sys.executable, script, str(self.port)], **options)
        self.port = int(self.process.stdout.readline())
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
        self.ask("PUT", "/bucket")

    def ask(self, method, path, data=None, headers=()):
        address = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(
            address, data=data, method=method, headers={"Content-Type": "application/octet-stream", **dict(headers)}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def overwrite(self, key, data):
        """Put other bytes there, as another program would."""
        access = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{self.port}", **access)
        client.put_object(Bucket="bucket", Key=key, Body=data)
        client.close()

    def url(self, name):
        return f"s3://bucket/{name}"


class SftpServer(Server):
    def __init__(self, folder):
        super().__init__()
        self.home, self.files = folder / "home", folder / "files"
        self.environment = {"HOME": str(self.home)}
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        self.files.mkdir()
        for name in ("host", "home/.ssh/id_ed25519"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        self.configuration = folder / "sshd_config"

    def start(self):
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for _ in range(1 if self.port else 10):
            port = self.port or free_port()
            self.configure(port)
            self.port, before = port, self.port
            self.begin([SSHD, "-D", "-f", self.configuration, "-E", self.home.parent / "sshd.log"])
            if self.await_port():
                break
            self.kill()
            self.port = before
        assert self.process is not None, (self.home.parent / "sshd.log").read_text(encoding="utf-8")
        host_key = (self.home.parent / "host.pub").read_text(encoding="ascii")
        (self.home / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key}", encoding="ascii")

    def configure(self, port):
        folder = self.home.parent
        lines = [
            f"Port {port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {folder}/host",
            f"AuthorizedKeysFile {self.home}/.ssh/id_ed25519.pub",
            "PermitRootLogin yes",
            "PasswordAuthentication yes",
            "MaxAuthTries 100",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "StrictModes no",
            "PidFile none",
            "Subsystem sftp internal-sftp",
        ]
        self.configuration.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def url(self, name):
        return f"sftp://127.0.0.1:{self.port}{self.files}/{name}"


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@contextmanager
def running(server):
    try:
        server.start()
        yield server
    finally:
        server.kill()


def s3_server():
    return running(S3Server())


def sftp_server(folder):
    return running(SftpServer(folder))


@pytest.fixture(scope="session")
def s3():
    """moto's S3, one for all tests of a process. A test that stops or kills a server starts its own."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def sftp(tmp_path_factory):
    if SSHD is None:
        pytest.skip("not on PATH: sshd, ssh-keygen")
    with sftp_server(tmp_path_factory.mktemp("sftp")) as server:
        yield server
