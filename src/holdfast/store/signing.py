"""Signing: Ed25519 keys of a run's checkpoints.
A private key signs manifests, its public key checks them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from .. import disk
from ..errors import Untrusted, UsageError

_MOST_BYTES = 1 << 20  # no file with a key is larger
# how a file with one begins
_PUBLIC = re.compile(rb"(ssh|ecdsa|sk)-|-+ ?BEGIN (SSH2 |RSA )?PUBLIC KEY")
_PRIVATE = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY")


class Key(NamedTuple):
    """A public key."""

    raw: bytes

    @property
    def fingerprint(self) -> str:
        """Its name, as `ssh-keygen -l` prints it."""
        import base64
        import hashlib

        parts = (b"ssh-ed25519", self.raw)
        blob = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")

    def require(self, said: str, signature: str, data: bytes, where: object) -> None:
        """Verify the signature of `data`.

        Raises:
            Untrusted: the key that a manifest names is not this one, or did not sign `data`. Both
                are in hex.
        """
        if not signature:
            raise Untrusted(
                f"{where}: is not signed, and key {self.fingerprint} was to have signed it"
            )
        if said != self.raw.hex():
            other = Key(bytes.fromhex(said)).fingerprint
            raise Untrusted(f"{where}: is signed by key {other}, and not by {self.fingerprint}")
        ed25519 = _library()[0]
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.raw).verify(
                bytes.fromhex(signature), data
            )
        except _library()[2]:
            raise Untrusted(
                f"{where}: its signature by key {self.fingerprint} does not hold"
            ) from None


class Signer:
    """A private key, which never leaves this object."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the private key.

        Raises:
            UsageError: there is no such key, it is a public one, others may read it, or it has a
                passphrase.
        """
        file = Path(path).expanduser()
        data = _content(file, private=True)
        ed25519, serialization, _ = _library()
        load = serialization.load_pem_private_key
        if data.startswith(b"-----BEGIN OPENSSH"):
            load = serialization.load_ssh_private_key
        try:
            key = load(data, None)
        except Exception as error:
            # the latter until cryptography 43
            if isinstance(error, TypeError) or "password" in str(error):
                raise UsageError(
                    f"{file}: the key has a passphrase, and a run cannot ask for it"
                ) from None
            # of the library's own kinds; its words could hold what the file holds
            raise UsageError(
                f"{file}: is no private key in PEM: make one by ssh-keygen -t ed25519 -N ''"
            ) from None
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise UsageError(f"{file}: is no Ed25519 key: make one by ssh-keygen -t ed25519 -N ''")
        self._key = key
        self.key = Key(key.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"Signer({self.key.fingerprint})"

    def sign(self, data: bytes) -> bytes:
        found: bytes = self._key.sign(data)
        return found


def public_key(path: str | os.PathLike[str]) -> Key:
    """Return the public key in a file as `ssh-keygen` or `openssl pkey -pubout` write it.

    Raises:
        UsageError: it has none.
    """
    file = Path(path).expanduser()
    data = _content(file, private=False)
    ed25519, serialization, _ = _library()
    load = serialization.load_pem_public_key
    if not data.startswith(b"-----"):
        load = serialization.load_ssh_public_key
    try:
        key = load(data)
    except Exception:  # of the library's own kinds
        key = None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise UsageError(
            f"{file}: is no public Ed25519 key, "
            "as ssh-keygen writes it beside the private one (.pub)"
        )
    return Key(key.public_bytes_raw())


def _content(file: Path, *, private: bool) -> bytes:
    try:
        with open(disk.open_plain(file, follow=True), "rb") as opened:
            mode, data = os.fstat(opened.fileno()).st_mode, opened.read(_MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{file}: the key cannot be read: {error.strerror}") from error
    if private and _PUBLIC.match(data):
        raise UsageError(
            f"{file}: is a public key, and signing needs the private one: "
            "ssh-keygen writes it without .pub"
        )
    if not private and _PRIVATE.match(data):
        raise UsageError(
            f"{file}: is a private key, and checking needs "
            "the public one: ssh-keygen writes it as .pub"
        )
    if private and mode & 0o077:
        raise UsageError(f"{file}: others may read this private key; chmod 600 {file}")
    return data


def _library() -> tuple[Any, Any, Any]:
    """Return what is used of cryptography: it is loaded only for signed runs."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise UsageError(
            "signed checkpoints need cryptography: pip install 'holdfast[signed]'"
        ) from error
    return ed25519, serialization, InvalidSignature
