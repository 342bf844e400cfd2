"""Keys for tests, the same everywhere; and what a forger makes of a signed checkpoint."""

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from holdfast.store import format
from holdfast.store.checkpoint import Checkpoint


def key_pair(folder, name="key", seed=1):
    """Write a private key and its public half; return the path of the private one."""
    key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    path = folder / name
    form = serialization.PrivateFormat.OpenSSH
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    path.chmod(0o600)
    ssh = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(ssh + b"\n")
    return path


def with_quick_digests(path):
    """Change each file of a checkpoint; return a manifest for it with digests that anybody can make to fit."""
    manifest = Checkpoint(path).manifest
    for name in manifest.files:
        data = bytearray((path / name).read_bytes())
        data[-1] ^= 1
        (path / name).write_bytes(data)
    leaves = {key: _quick(path, leaf) for key, leaf in manifest.leaves.items()}
    files = {}
    for name, file in manifest.files.items():
        inside = sorted((leaf for leaf in leaves.values() if leaf.shard == name), key=format.in_file)
        head = format.digest((path / name).read_bytes()[: inside[0].offset])
        files[name] = format.FileEntry(file.size_bytes, format.joined_digest([head, *(leaf.digest for leaf in inside)]))
    return msgspec.structs.replace(manifest, leaves=leaves, files=files)


def _quick(path, leaf):
    data = (path / leaf.shard).read_bytes()[leaf.offset : leaf.offset + leaf.size_bytes]
    return msgspec.structs.replace(leaf, digest=format.digest(data))
