"""What the third save of a LoRA-like state costs: 99% of its bytes are frozen, between trained adapters."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contender import Contender, Raw
from harness import MIB, Column, Results, options, turns
from holdfast import Every, Run, Store
from holdfast.run import writer
from ours import ALL
from peers import dcp_save
from subject import Watch, arrays, contest, evict, sync_tree


class Lora(Contender):
    """300 layers, each a frozen tensor and an adapter of a hundredth of its bytes."""

    def prepare(self) -> None:
        import torch

        self.state: dict[str, Any] = {}
        for number, array in enumerate(arrays(self.setting)):
            cut = array.size // 100 * 99 // 16 * 16
            self.state[f"layers.{number}.weight"] = torch.from_numpy(array[:cut])
            self.state[f"layers.{number}.adapter"] = torch.from_numpy(array[cut:])

    def bump(self) -> None:
        for name, tensor in self.state.items():
            if name.endswith("adapter"):
                tensor.add_(1e-3)

    def put(self, path: Path, number: int) -> None:
        """Save the state durably, as the `number`-th checkpoint below `path`."""
        raise NotImplementedError

    def pause(self) -> None:
        """Let what works between two saves come to its end."""

    def frozen_turn(self) -> dict[str, Any]:
        """Three saves in a directory of their own: the first is a full one, the third is what is looked at."""
        self.turns += 1
        path = self.home / str(self.turns)
        path.mkdir()
        figures: dict[str, Any] = {}
        for number in (1, 2, 3):
            read, watch = read_bytes(), Watch()
            self.pause()
            figures |= {"between_s": watch(), "between_mib": (read_bytes() - read) / MIB}
            self.bump()
            before, read, watch = files(path), read_bytes(), Watch()
            self.put(path, number)
            seconds = watch()
            written = sum(size for inode, size in files(path).items() if inode not in before)
            if number != 2:
                what = "full" if number == 1 else "third"
                figures |= {f"{what}_s": seconds, f"{what}_mib": written / MIB}
        figures |= {
            "read_back_mib": (read_bytes() - read) / MIB,
            "third_over_full": figures["third_s"] / figures["full_s"],
        }
        self.end()
        self.forget()
        return figures

    def end(self) -> None:
        """Leave nothing open that is about to be removed."""


class Holdfast(Lora):
    def put(self, path: Path, number: int) -> None:
        if number == 1:
            self.store = Store(path / "run", keep=ALL)
        self.store.save(self.state, step=number)

    def end(self) -> None:
        self.store.close()


class Background(Lora):
    """A run's background saves, each waited for, one right after the other: no file is read back early."""

    def prepare(self) -> None:
        super().prepare()
        self.run: Run | None = None

    def put(self, path: Path, number: int) -> None:
        if self.run is None:
            self.run = Run(path / "run", {"model": Tracked(self.state)}, every=Every(steps=1), keep=ALL)
            self.run.__enter__()
        self.run.safe_point()
        self.run.wait()

    def end(self) -> None:
        if self.run is not None:
            self.run.__exit__(None, None, None)
            self.run = None

    def close(self) -> None:
        self.end()


class Paused(Background):
    """The same, with as much time between two saves as it takes to read back what the next one will link."""

    def pause(self) -> None:
        for thread in threading.enumerate():
            if thread.name == writer.NAME:
                thread.join()


class Tracked:
    """What a run saves."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> Mapping[str, Any]:
        return self.state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


class TorchSave(Lora):
    def put(self, path: Path, number: int) -> None:
        import torch

        torch.save(self.state, path / f"{number}.pt")
        sync_tree(path)


class Safetensors(Lora):
    def put(self, path: Path, number: int) -> None:
        from safetensors.torch import save_file

        save_file(self.state, path / f"{number}.safetensors")
        sync_tree(path)


class Dcp(Lora):
    def put(self, path: Path, number: int) -> None:
        dcp_save(self.state, path / str(number))
        sync_tree(path)


class RawLimit(Raw):
    """The whole state written and, cold, read back: what a full save and its verification cost at least."""

    def frozen_turn(self) -> dict[str, Any]:
        self.kept = self.home / "raw"
        (self.kept / "raw").unlink(missing_ok=True)  # giving its blocks back is no part of the write
        watch = Watch()
        self.write(self.kept)
        seconds = watch()
        evict(self.kept)
        return {"full_s": seconds, "read_s": self.read(os.O_DIRECT, 4), "full_mib": float(self.setting.size_mib)}


def files(path: Path) -> dict[int, int]:
    """Bytes on the disk of each file below `path`, by inode: a linked file is there once."""
    found = (Path(place) / name for place, _, names in os.walk(path) for name in names)
    return {stat.st_ino: stat.st_blocks * 512 for stat in map(os.lstat, found)}


def read_bytes() -> int:
    """What this process has fetched from the disk so far."""
    return int(Path("/proc/self/io").read_text().split("read_bytes:")[1].split()[0])


RAW = "raw limit: O_DIRECT write and read"
CONTENDERS = {
    RAW: RawLimit,
    "Holdfast, synchronous": Holdfast,
    "Holdfast, background, no pause": Background,
    "Holdfast, background": Paused,
    "torch.save": TorchSave,
    "safetensors": Safetensors,
    "DCP": Dcp,
}
COLUMNS = [
    Column("full save, s", "full_s"),
    Column("third save, s", "third_s"),
    Column("third / full", "third_over_full", digits=3),
    Column("full, MiB written", "full_mib", digits=1),
    Column("third, MiB written", "third_mib", digits=1),
    Column("third, MiB read back", "read_back_mib", digits=1),
    Column("read back before it, MiB", "between_mib", digits=1),
    Column("which took, s", "between_s"),
    Column("raw cold read of all, s", "read_s"),
]
NOTES = """
Medians (smallest to largest) of the rounds after the first. All saves are durable when their time ends; the loop
waits for those in the background, too. Written: blocks on the disk of files that were not there before (a hard link
is none). Read back: what the process fetched from the disk to see that a file is whole before it is linked, during
the third save or between the second and the third, beside a loop that waits here and has steps to make elsewhere.
Without a pause there is no time for that: the third save comes right after the second. The peers write everything;
saving the adapters alone would be as small, and no whole checkpoint.
"""


def main() -> None:
    given = options("frozen", sizes=[512, 2048], doc=__doc__)
    with Results("frozen", given) as results:
        for size in given.sizes:
            with contest(CONTENDERS, given, size) as ring:
                for turn in turns(ring, given.rounds, "frozen_turn"):
                    results.add(size, turn)
        results.publish(COLUMNS, NOTES)


if __name__ == "__main__":
    main()
