"""Subject: the state that is saved, in memory that all contenders share, since a dozen copies would not fit.

Float32 in 300 tensors: 100 parameters and AdamW's two moments of each. Every contender sees it as a live model and
optimizer of its own; only one works at a time. Its tensors begin at multiples of 64 bytes and not of pages, as torch's
own do.
"""

from __future__ import annotations

import argparse
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness import MIB, Worker, chosen, scratch, workers

PARAMETERS = 100
TENSORS = 3 * PARAMETERS
_LEAD_BYTES = 64


class Setting(NamedTuple):
    """What a contender's process is told."""

    size_mib: int
    memory: str  # a name under which the shared memory can be opened
    scratch: Path
    device: str = "cpu"


@contextmanager
def contest(
    contenders: Mapping[str, Callable[..., Any]], given: argparse.Namespace, size_mib: int, device: str = "cpu"
) -> Iterator[list[Worker]]:
    """Memory, a scratch directory and a process for each of the contenders that were asked for."""
    with (
        scratch(given.scratch) as place,
        shared(size_mib) as memory,
        workers(chosen(contenders, given.only), Setting(size_mib, memory, place, device)) as ring,
    ):
        yield ring


@contextmanager
def shared(size_mib: int) -> Iterator[str]:
    """Memory for a state of that size, filled with numbers that do not compress; the name to open it by."""
    descriptor = os.memfd_create("state")
    try:
        os.ftruncate(descriptor, size_mib * MIB + MIB)
        floats = np.frombuffer(_mapped(descriptor), dtype=np.float32)
        block = np.random.default_rng(0).standard_normal(16 * MIB // 4, dtype=np.float32)
        for number, start in enumerate(range(0, floats.size, block.size)):
            part = floats[start : start + block.size]
            np.multiply(block[: part.size], 1 + number / 997, out=part)
        second_moments = floats[floats.size // 3 * 2 :]
        np.abs(second_moments, out=second_moments)
        del floats, part, second_moments
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def mapped(setting: Setting) -> mmap.mmap:
    """The shared memory, every page present, so that no contender pays for faults of the state itself."""
    descriptor = os.open(setting.memory, os.O_RDWR)
    try:
        return _mapped(descriptor)
    finally:
        os.close(descriptor)


def arrays(setting: Setting) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """The 300 tensors as arrays over the shared memory."""
    each = setting.size_mib * MIB // TENSORS // 64 * 16  # floats; whole lines of the cache
    whole = np.frombuffer(mapped(setting), dtype=np.float32)[_LEAD_BYTES // 4 :]
    return [whole[i * each : (i + 1) * each] for i in range(TENSORS)]


class Live:
    """A model and its AdamW over the shared memory, or on an accelerator as copies of it."""

    def __init__(self, setting: Setting) -> None:
        import torch

        self._torch, self._device = torch, setting.device
        tensors = [torch.from_numpy(array).to(setting.device) for array in arrays(setting)]
        self._moments = tensors[PARAMETERS:]
        self.model = torch.nn.ParameterList([torch.nn.Parameter(tensor) for tensor in tensors[:PARAMETERS]])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.rebind()

    def rebind(self) -> None:
        """The optimizer's moments are the shared memory again; torch's own load_state_dict replaces them."""
        for number, parameter in enumerate(self.model):
            first, second = self._moments[number], self._moments[PARAMETERS + number]
            step = self._torch.tensor(1.0)
            self.optimizer.state[parameter] = {"step": step, "exp_avg": first, "exp_avg_sq": second}

    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def state(self) -> dict[str, Any]:
        return {name: target.state_dict() for name, target in self.objects().items()}

    def tensors(self) -> dict[str, Any]:
        """The 300 live tensors by name, in one flat dict."""
        found = {f"model.{number}": parameter.data for number, parameter in enumerate(self.model)}
        for moment in ("exp_avg", "exp_avg_sq"):
            for number, parameter in enumerate(self.model):
                found[f"{moment}.{number}"] = self.optimizer.state[parameter][moment]
        return found

    def bump(self) -> None:
        """Every tensor changes a little: nobody may take it for the one that was saved before."""
        with self._torch.no_grad():
            for tensor in self.tensors().values():
                tensor[:1] += 1
        self.settle()

    def clear(self) -> None:
        """Zeros everywhere, so that a restore that does nothing is seen."""
        self.rebind()
        for tensor in self.tensors().values():
            tensor.zero_()

    def settle(self) -> None:
        """Wait for the accelerator, if there is one."""
        if self._device != "cpu":
            self._torch.cuda.synchronize()

    def digest(self) -> str:
        return digest([tensor.cpu().numpy() for tensor in self.tensors().values()])


def digest(tensors: list[Any]) -> str:
    import xxhash

    found = xxhash.xxh3_128()
    for array in tensors:
        found.update(memoryview(array).cast("B"))
    return found.hexdigest()


class Memory:
    """How much more memory this process ever held than when it began, the pages of mapped files counted too."""

    def __init__(self) -> None:
        self._start = _status("VmRSS")

    def reset(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM to VmRSS

    def extra_mib(self) -> float:
        return max(0.0, (_status("VmHWM") - self._start) / 1024)


class Watch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self._began


def sync_tree(path: Path) -> None:
    """Files, their directories and the name of `path` itself survive a power loss."""
    for place, _, names in os.walk(path, topdown=False):
        for name in names:
            _sync(Path(place) / name)
        _sync(Path(place))
    _sync(path.parent)


def evict(path: Path) -> None:
    """Drop the files below `path` from the page cache."""
    for place, _, names in os.walk(path):
        for name in names:
            descriptor = os.open(Path(place) / name, os.O_RDONLY)
            os.fsync(descriptor)  # dirty pages stay otherwise
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def warm(path: Path) -> None:
    """Bring the files below `path` into the page cache."""
    buffer = bytearray(4 * MIB)
    for place, _, names in os.walk(path):
        for name in names:
            with (Path(place) / name).open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _mapped(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


def _status(key: str) -> int:
    """KiB."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{key}:")[1].split()[0])
