"""What goes wrong in a run's directory: each of `PLANTS` puts one stale file into it, beside what is whole.

`built` makes a run with steps 1 to 4. `dies` makes a further attempt whose process is gone without a word.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.rules import Best
from holdfast.store.store import Store
from stores import flip, having, in_a_child

KEEP = Best("acc", max, n=9)
OLD_S = 7200


def name(step: int) -> str:
    return f"step-{step:09d}"


def built(root: Path) -> Path:
    """A run that is well: four checkpoints, one of them pinned."""
    store = having(root, 1, 2, 3, 4, keep=KEEP)
    store.pin(2)
    store.close()
    return root


def dies(root: Path, act: Callable[[Store], object] = lambda store: None) -> Path:
    """The room of an attempt that was killed after `act`."""

    def live() -> None:
        store = Store(root, keep=KEEP)
        store.claim()
        act(store)
        os._exit(9)

    assert in_a_child(live) == 9
    return max((root / "attempts").glob("[0-9]*"), key=lambda path: int(path.name))


def oldest(root: Path) -> Path:
    """The checkpoint that any later start went on behind."""
    return Store(root).checkpoints()[0].path


def shard(checkpoint: Path) -> Path:
    """A file of it that has more than a few bytes."""
    return max(checkpoint.glob("*.safetensors"), key=lambda path: path.stat().st_size)


def half(path: Path) -> None:
    """A copy of a checkpoint that was cut short."""
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"half")


def aged(path: Path) -> None:
    os.utime(path, (time.time() - OLD_S,) * 2, follow_symlinks=False)


def half_save(root: Path) -> None:
    half(dies(root) / name(95))


def half_removal(root: Path) -> None:
    room = dies(root)
    shutil.copytree(oldest(root), room / f"deleting-{name(99)}")


def half_quarantine(root: Path) -> None:
    room = dies(root)
    half(room / f"quarantine-{name(99)}-damaged")


def half_link(root: Path) -> None:
    (dies(root) / "link-latest").symlink_to(name(96))


def draft_of_a_room(root: Path) -> None:
    draft = root / "attempts" / ".claim-0123"
    draft.mkdir()
    aged(draft)


def draft_of_run_json(root: Path) -> None:
    (root / ".run-0123.json").write_bytes(b"{")
    aged(root / ".run-0123.json")


def folder_of_a_doctor(root: Path) -> None:
    (root / ".holdfast-doctor-123").mkdir()
    aged(root / ".holdfast-doctor-123")


def half_pin(root: Path) -> None:
    (root / "pins").mkdir(exist_ok=True)
    (root / "pins/.0123.part").write_bytes(b"half")
    aged(root / "pins/.0123.part")


def half_export(root: Path) -> None:
    (root / ".model.safetensors.0123.new").write_bytes(b"half")


def copy_without_manifest(root: Path) -> None:
    half(root / "checkpoints" / name(97))


def copy_without_a_file(root: Path) -> None:
    shutil.copytree(oldest(root), root / "checkpoints" / name(98))
    shard(root / "checkpoints" / name(98)).unlink()


def copy_with_a_short_file(root: Path) -> None:
    shutil.copytree(oldest(root), root / "checkpoints" / name(98))
    os.truncate(shard(root / "checkpoints" / name(98)), 10)


def dangling_checkpoint(root: Path) -> None:
    (root / "checkpoints" / name(97)).symlink_to("/nowhere/at/all")


def dangling_links(root: Path) -> None:
    for link in ("latest", "best"):
        (root / "checkpoints" / link).unlink(missing_ok=True)
        (root / "checkpoints" / link).symlink_to(name(94))


def stale_latest(root: Path) -> None:
    (root / "checkpoints/latest").unlink()
    (root / "checkpoints/latest").symlink_to(oldest(root).name)


def no_latest(root: Path) -> None:
    (root / "checkpoints/latest").unlink()


def no_run_json(root: Path) -> None:
    (root / "run.json").unlink()


def odd_run_json(root: Path) -> None:
    (root / "run.json").write_bytes(b"")


def whole_in_quarantine(root: Path) -> None:
    """It was set aside when the disk gave other bytes than it gives now."""
    checkpoint = oldest(root)
    store = Store(root, keep=KEEP)
    flip(shard(checkpoint))
    path = store.quarantine(store[checkpoint.name], "damaged")
    store.close()
    flip(shard(path))


PLANTS = [
    half_save,
    half_removal,
    half_quarantine,
    half_link,
    draft_of_a_room,
    draft_of_run_json,
    folder_of_a_doctor,
    half_pin,
    half_export,
    copy_without_manifest,
    copy_without_a_file,
    copy_with_a_short_file,
    dangling_checkpoint,
    dangling_links,
    stale_latest,
    no_latest,
    whole_in_quarantine,
    no_run_json,
    odd_run_json,
]


def all_at_once(root: Path) -> None:
    """Every stale file that does not stand in another one's place."""
    for plant in PLANTS:
        if plant not in (copy_with_a_short_file, dangling_checkpoint, stale_latest, no_latest):
            plant(root)


def run_id(root: Path) -> str:
    return str(msgspec.json.decode((root / "run.json").read_bytes())["run"])
