"""The table of saves with the model on a GPU. Holdfast and its kept peers stage through pinned memory."""

from __future__ import annotations

import ours
import peers
from contender import Contender, Raw
from harness import Column, Results, Turn, options, say, turns
from subject import Live, Watch, contest

RAW = "raw limit: copy to pinned memory, O_DIRECT write"


class RawGpu(Raw):
    """One copy of the state from the GPU into pinned memory that was used before; the write as on every machine."""

    def prepare(self) -> None:
        super().prepare()
        import torch

        self.live = Live(self.setting)
        self.pinned = [torch.empty(tensor.shape, pin_memory=True) for tensor in self.live.tensors().values()]

    def memcpy(self) -> float:
        for _ in range(2):
            watch = Watch()
            for target, tensor in zip(self.pinned, self.live.tensors().values(), strict=True):
                target.copy_(tensor, non_blocking=True)
            self.live.settle()
            seconds = watch()
        return seconds


class DcpKept(peers.DcpKept):
    options = (True, False, False, True)  # pinned, non-blocking


class DcpOverlapped(peers.DcpOverlapped):
    options = (True, False, True, True)  # the same, in a thread


CONTENDERS: dict[str, type[Contender]] = {
    RAW: RawGpu,
    "Holdfast, synchronous": ours.Synchronous,
    "Holdfast, background": ours.Background,
    "torch.save": peers.TorchSave,
    "safetensors": peers.Safetensors,
    "DCP": peers.Dcp,
    "DCP async": peers.DcpAsync,
    "DCP async, kept pinned stager": DcpKept,
    "DCP async, overlapped": DcpOverlapped,
    "torchsnapshot": peers.Torchsnapshot,
    "torchsnapshot async": peers.TorchsnapshotAsync,
}
COLUMNS = [
    Column("loop waits, s", "wait_s", digits=4),
    Column("x pinned copy", "wait_s", over=(RAW, "wait_s"), digits=2),
    Column("durable, s", "durable_s"),
    Column("x raw write", "durable_s", over=(RAW, "durable_s"), digits=2),
    Column("extra memory of the host, MiB", "extra_mib", digits=0),
    Column("first save: loop waits, s", "first wait_s"),
    Column("first save: durable, s", "first durable_s"),
]


def main() -> None:
    given = options("gpu", sizes=[64, 512, 2048], doc=__doc__)
    with Results("gpu", given) as results:
        name = gpu()
        if name is None:
            results.add(0, Turn(0, "no GPU here", {"gpu": "none: nothing was measured"}))
            say("no GPU here: nothing was measured")
            return
        say(name)
        for size in given.sizes:
            with contest(CONTENDERS, given, size, device="cuda") as ring:
                for turn in turns(ring, given.rounds, "save_turn"):
                    results.add(size, turn)
        results.publish(COLUMNS, f"On {name}. Medians (smallest to largest) of the rounds after the first.")


def gpu() -> str | None:
    try:
        import torch
    except ImportError:
        return None
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


if __name__ == "__main__":
    main()
