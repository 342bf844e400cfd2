"""Files that want to use up memory and time, or to act: looked at by a process that has little of both."""

import os
import re
import resource
import struct
import subprocess
import sys
import zipfile
import zlib

import pytest
import safetensors.torch
import torch

import foreign_corpus as corpus

MEMORY = 1 << 30  # address space of the process
SECONDS = 60  # of the processor; most take one

LOOK = """
import sys
from holdfast.cli import commands
for command in ("verify", "show", "ls"):
    try:
        commands.main([command, sys.argv[1]])
    except SystemExit as ended:
        print(command, ended.code, file=sys.stderr)
"""


def archive(path, data, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr("archive/data.pkl", data)
        made.writestr("archive/version", b"3\n")
    return path


def sparse(path, size, head=b""):
    path.write_bytes(head)
    os.truncate(path, size)
    return path


def bomb(path):
    """Two members of 64 GiB of zeros each, in 130 kB."""
    made = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = b"".join(made.compress(bytes(1 << 20)) for _ in range(64)) + made.flush()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
    data = bytearray(path.read_bytes())
    end = data.rindex(b"PK\5\6")
    start = data.index(b"PK\1\2")
    names = b"archive/code"
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 0, 0, len(packed), 0xFFFFFFF0, len(names), 0) + names
    entry = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 0, 0, len(packed), 0xFFFFFFF0, len(names), 0, 0, 0, 0, 0, start
    )
    directory = bytes(data[start:end]) + entry + names
    tail = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2, 2, len(directory), start + len(local) + len(packed), 0)
    path.write_bytes(bytes(data[:start]) + local + packed + directory + tail)
    return path


def many_members(path):
    with zipfile.ZipFile(path, "w") as made:
        for number in range(300_000):
            made.writestr(zipfile.ZipInfo(f"archive/data/{number:0100}"), b"")
    return path


def huge_stride(path):
    torch.save({"x": torch.zeros(1).expand(10**6, 10**6), "y": torch.zeros(3)}, path)
    return path


def header(path, text, length=None):
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text)
    return path


def deep_index(folder):
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_bytes(b'{"weight_map":' + b"[" * 10**6)
    return folder


def pipe(folder):
    """Nothing is waited for where a file should be."""
    folder.mkdir()
    os.mkfifo(folder / "model.safetensors")
    return folder


def shards_without_end(folder):
    folder.mkdir()
    safetensors.torch.save_file({"w": torch.ones(1)}, folder / "model-00001-of-99999.safetensors")
    return folder


HOSTILE = {  # what is made in a folder -> exit codes that `verify` may have
    "laughs.pt": (lambda path: archive(path, corpus.laughs()), {1}),
    "deep.pt": (lambda path: archive(path, corpus.deep(10**6)), {1}),
    "long-number.pt": (
        lambda path: archive(path, b"\x80\x02\x8b" + struct.pack("<I", 1 << 24) + b"\1" * (1 << 24) + b"."),
        {0},
    ),
    "memo.pt": (lambda path: archive(path, b"\x80\x02" + b"]r\xff\xff\xff\x7f" * 10**6 + b"."), {0, 1, 4}),
    "claims.pt": (lambda path: archive(path, b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60)), {4}),
    "opcodes.pt": (lambda path: archive(path, b"\x80\x02" + b"N0" * 10**7 + b"N.", zipfile.ZIP_DEFLATED), {1}),
    "zeros.pt": (lambda path: archive(path, bytes(1 << 20) * 300, zipfile.ZIP_DEFLATED), {1}),
    "bomb.pt": (bomb, {1, 4}),
    "members.pt": (many_members, {1}),
    "strides.pt": (huge_stride, {0}),
    "hole.pt": (lambda path: sparse(path, 1 << 40, b"PK\3\4"), {4}),
    "hole-of-a-pickle.pt": (lambda path: sparse(path, 1 << 40, b"\x80\x02c"), {1, 4}),
    "hole.safetensors": (lambda path: sparse(path, 1 << 40), {4}),
    "hole.h5": (lambda path: sparse(path, 1 << 40, b"\x89HDF\r\n\x1a\n"), {4}),
    "header.safetensors": (lambda path: header(path, b"", 99_999_999), {4}),
    "nested.safetensors": (lambda path: header(path, b'{"w":' * 10**6), {4}),
    "keys.safetensors": (lambda path: header(path, b'{"__metadata__":{' + b'"k":"v",' * 10**6 + b'"k":"v"}}'), {0}),
    "index": (deep_index, {4}),
    "pipe": (pipe, {4}),
    "shards": (shards_without_end, {4}),
}


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


SECONDS_EACH = ["laughs.pt", "opcodes.pt", "deep.pt", "members.pt"]


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in SECONDS_EACH])
def test_hostile_files_cost_little_and_change_nothing(tmp_path, name):
    """Within a gibibyte and a minute of the processor, one line of an error at most, and no new file.

    tests/prove has those of which each takes seconds.
    """
    costs_little(tmp_path, name)


def costs_little(tmp_path, name):
    make, expected = HOSTILE[name]
    made = make(tmp_path / name)
    before = {*tmp_path.rglob("*")}
    told = subprocess.run(
        [sys.executable, "-c", LOOK, str(made)],
        check=False,
        capture_output=True,
        text=True,
        timeout=7 * SECONDS,
        preexec_fn=limited,
    )
    assert "Traceback" not in told.stderr
    ended = re.findall(r"^(verify|show|ls) (\d+)$", told.stderr, re.MULTILINE)
    assert ["verify", "show", "ls"] == [command for command, _ in ended], told.stderr[-2000:]
    codes = {command: int(code) for command, code in ended}
    assert codes["verify"] in expected, told.stdout[-500:] + told.stderr[-500:]
    assert codes["show"] in {0, 1, 4}
    assert 0 == codes["ls"]
    assert len(told.stderr.splitlines()) <= 3 + len([code for code in codes.values() if code])
    assert before == {*tmp_path.rglob("*")}
