"""A connection to an SFTP server, as ssh would make it:
~/.ssh/config, known hosts, the agent and the keys.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import paramiko

from ..errors import UsageError
from .place import Refused, Silent, redact_error, redact_url
from .sftp_requests import SftpClient

CONNECT_S = 5.0
ANSWER_S = 20.0  # the longest wait for one answer


class Connection:
    """An SSH session and its SFTP client, which are closed together."""

    def __init__(self, url: str) -> None:
        self._session = paramiko.SSHClient()
        # it writes to the terminal what it raises anyway
        paramiko.util.get_logger("paramiko").setLevel(100)
        try:
            self._session.set_missing_host_key_policy(paramiko.RejectPolicy())
            self.client = self._connected(url)
        except BaseException as error:
            self._session.close()
            if isinstance(error, Exception) and not isinstance(error, UsageError):
                raise _connection_error(error, url) from None
            raise

    def close(self) -> None:
        self._session.close()

    def _connected(self, url: str) -> SftpClient:
        parts = urlsplit(url)
        options = _options(parts.hostname or "")
        host, port = str(options["hostname"]), int(parts.port or options.get("port", 22))
        self._load_known_hosts(options)
        self._session.connect(
            host,
            port,
            username=unquote(parts.username or "") or options.get("user"),
            password=unquote(parts.password) if parts.password else None,
            key_filename=options.get("identityfile"),
            sock=_socket(host, port, options, url),
            timeout=ANSWER_S,
            banner_timeout=ANSWER_S,
            auth_timeout=ANSWER_S,
            channel_timeout=ANSWER_S,
        )
        transport = self._session.get_transport()
        channel = transport.open_session(timeout=ANSWER_S)
        channel.settimeout(ANSWER_S)
        channel.invoke_subsystem("sftp")
        return SftpClient(channel)

    def _load_known_hosts(self, options: dict[str, Any]) -> None:
        named = str(
            options.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
        ).split()
        for name in (*named, "/etc/ssh/ssh_known_hosts"):
            with suppress(FileNotFoundError):
                self._session.load_system_host_keys(str(Path(name).expanduser()))


def _options(host: str) -> dict[str, Any]:
    """What ssh's configuration says of this host, in lower case."""
    config = paramiko.SSHConfig()
    for name in ("~/.ssh/config", "/etc/ssh/ssh_config"):
        with suppress(FileNotFoundError), open(Path(name).expanduser(), encoding="utf-8") as lines:
            config.parse(lines)
    return dict(config.lookup(host))


def _socket(host: str, port: int, options: dict[str, Any], url: str) -> Any:
    if any(
        str(options.get(word, "none")).lower() != "none" for word in ("proxyjump", "proxycommand")
    ):
        raise UsageError(
            f"{redact_url(url)}: ssh reaches this host through another one, and a mirror cannot; "
            "forward a port with ssh -L, and name that port of localhost"
        )
    made = socket.create_connection((host, port), timeout=CONNECT_S)
    # Bytes that nobody takes are an error, too: the channel's own time limit is for answers.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(ANSWER_S * 1000))
    return made


def _connection_error(error: Exception, url: str) -> Exception:
    """Return the error to raise for a connection that failed."""
    name, text = redact_url(url), redact_error(error, url)
    host = urlsplit(url).hostname
    if isinstance(error, paramiko.BadHostKeyException):
        return Refused(
            f"{name}: the server has another host key than known_hosts says; find out why"
        )
    if isinstance(error, paramiko.AuthenticationException):
        return Refused(
            f"{name}: {text}; check user, key, agent and password: "
            f"ssh {host} must work without a question"
        )
    if "not found in known_hosts" in text:
        return Refused(
            f"{name}: its host key is in no known_hosts; "
            f"check the key, and connect once with ssh {host}"
        )
    if isinstance(error, PermissionError):
        return Refused(f"{name}: {text}")
    return Silent(
        errno.EHOSTUNREACH, f"{name}: {text}{os.strerror(errno.ETIMEDOUT) if not text else ''}"
    )
