"""Peers: how their own documents say to save and restore, made as durable as Holdfast, with as many threads where
they take a number.

`wait_s` of a synchronous peer ends before the fsync, which a thread of the user's could do.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from contender import Contender, Saved
from subject import Setting, Watch, arrays, digest, sync_tree

logging.disable(logging.ERROR)
THREADS = 4  # as Holdfast on two cores


class TorchSave(Contender):
    def prepare(self) -> None:
        super().prepare()
        import torch

        self.torch = torch

    def save(self, path: Path) -> Saved:
        watch = Watch()
        path.mkdir()
        self.torch.save(self.live.state(), path / "state.pt")
        wait_s = watch()
        sync_tree(path)
        return Saved(wait_s, watch())

    def restore(self, path: Path, *, mmap: bool = False) -> None:
        state = self.torch.load(path / "state.pt", weights_only=True, mmap=mmap)
        for name, target in self.live.objects().items():
            target.load_state_dict(state[name])


class TorchMapped(TorchSave):
    """torch.load(mmap=True); the optimizer's state is copied, or it would stay in the file."""

    def restore(self, path: Path, *, mmap: bool = True) -> None:
        state = self.torch.load(path / "state.pt", weights_only=True, mmap=mmap)
        self.live.model.load_state_dict(state["model"])
        live = self.live.optimizer.state_dict()["state"]
        for number, moments in state["optimizer"]["state"].items():
            for name, tensor in moments.items():
                live[number][name].copy_(tensor)


class Safetensors(Contender):
    def prepare(self) -> None:
        super().prepare()
        from safetensors.torch import load_file, save_file

        self.save_file, self.load_file = save_file, load_file

    def save(self, path: Path) -> Saved:
        watch = Watch()
        path.mkdir()
        self.save_file(self.live.tensors(), path / "state.safetensors")
        wait_s = watch()
        sync_tree(path)
        return Saved(wait_s, watch())

    def restore(self, path: Path) -> None:
        found = self.load_file(path / "state.safetensors")
        for name, tensor in self.live.tensors().items():
            tensor.copy_(found[name])


def dcp() -> Any:
    import torch.distributed.checkpoint

    return torch.distributed.checkpoint


def dcp_writer(path: Path) -> Any:
    return dcp().FileSystemWriter(path, thread_count=THREADS)  # it syncs its files


def dcp_save(state: dict[str, Any], path: Path) -> None:
    dcp().save(state, storage_writer=dcp_writer(path), no_dist=True)


def dcp_load(state: dict[str, Any], path: Path) -> None:
    """Into the tensors of `state`."""
    dcp().load(state, storage_reader=dcp().FileSystemReader(path), no_dist=True)


class Dcp(Contender):
    def prepare(self) -> None:
        super().prepare()
        self.dcp = dcp()

    def save(self, path: Path) -> Saved:
        watch = Watch()
        dcp_save(self.live.state(), path)
        wait_s = watch()
        sync_tree(path)
        return Saved(wait_s, watch())

    def restore(self, path: Path) -> None:
        state = self.live.state()
        dcp_load(state, path)
        for name, target in self.live.objects().items():
            target.load_state_dict(state[name])


class DcpAsync(Dcp):
    """async_save in a thread, staging as it comes: fresh memory each time."""

    options: tuple[bool, bool, bool, bool] | None = (
        None  # of a stager that is kept: pinned, shared, async, non-blocking
    )

    def prepare(self) -> None:
        super().prepare()
        self.stager = None
        if self.options is not None:
            from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

            self.stager = DefaultStager(StagingOptions(*self.options))

    def start(self, path: Path) -> Any:
        return self.dcp.async_save(
            self.live.state(), storage_writer=dcp_writer(path), async_stager=self.stager, no_dist=True
        )

    def save(self, path: Path) -> Saved:
        watch = Watch()
        future = self.start(path)
        wait_s = watch()
        getattr(future, "upload_completion", future).result()
        sync_tree(path)
        return Saved(wait_s, watch())


class DcpKept(DcpAsync):
    """async_save with a stager that is kept, and its memory with it."""

    options = (False, False, False, False)


class DcpOverlapped(DcpAsync):
    """async_save with a kept stager that copies in a thread; the step waits for it."""

    options = (False, False, True, False)

    def save(self, path: Path) -> Saved:
        watch = Watch()
        response = self.start(path)
        wait_s = watch()
        compute(overlap_s(self.setting))
        again = Watch()
        response.staging_completion.result()
        wait_s += again()
        response.upload_completion.result()
        sync_tree(path)
        return Saved(wait_s, watch())


class Torchsnapshot(Contender):
    def prepare(self) -> None:
        super().prepare()
        from torchsnapshot import Snapshot

        self.snapshot = Snapshot

    def save(self, path: Path) -> Saved:
        watch = Watch()
        self.snapshot.take(str(path), self.live.objects())
        wait_s = watch()
        sync_tree(path)
        return Saved(wait_s, watch())

    def restore(self, path: Path) -> None:
        self.snapshot(str(path)).restore(self.live.objects())


class TorchsnapshotAsync(Torchsnapshot):
    def start(self, path: Path) -> Any:
        return self.snapshot.async_take(str(path), self.live.objects())

    def save(self, path: Path) -> Saved:
        watch = Watch()
        pending = self.start(path)
        wait_s = watch()
        pending.wait()
        sync_tree(path)
        return Saved(wait_s, watch())


class OrbaxAsync(Contender):
    """Arrays of JAX: immutable, so nothing is copied; restored arrays are new ones."""

    def prepare(self) -> None:
        import jax
        import orbax.checkpoint as ocp

        self.jax: Any = jax
        self.ocp = ocp
        self.arrays = arrays(self.setting)
        self.checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
        self.restored: dict[str, Any] = {}
        self.bump()

    def bump(self) -> None:
        for array in self.arrays:
            array[:1] += 1
        self.tree = {str(i): self.jax.device_put(array, may_alias=True) for i, array in enumerate(self.arrays)}

    def save(self, path: Path) -> Saved:
        watch = Watch()
        self.checkpointer.save(path, args=self.ocp.args.StandardSave(self.tree))
        wait_s = watch()
        self.checkpointer.wait_until_finished()
        sync_tree(path)
        return Saved(wait_s, watch())

    def clear(self) -> None:
        self.let_go()

    def let_go(self) -> None:
        self.restored = {}

    def restore(self, path: Path) -> None:
        wanted = {name: self.jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in self.tree.items()}
        found = self.checkpointer.restore(path, args=self.ocp.args.StandardRestore(wanted))
        self.restored = self.jax.block_until_ready(found)

    def digest(self) -> str:
        import numpy as np

        found = self.restored or self.tree
        return digest([np.asarray(found[str(i)]) for i in range(len(self.arrays))])


def overlap_s(setting: Setting) -> float:
    """How long the step after an overlapped save computes: longer than the copy, shorter than the write."""
    return setting.size_mib / 4000


def compute(seconds: float) -> None:
    """Forward and backward of a step, in their stead: products of matrices on one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    matrix, watch = torch.randn(512, 512), Watch()
    while watch() < seconds:
        matrix @ matrix
    torch.set_num_threads(threads)
