"""What a script of a cycling_utils user does with checkpoints and samplers."""

import os
from pathlib import Path

from holdfast.compat.cycling_utils import AtomicDirectory

LINK = "AtomicDirectory.latest_checkpoint"


def fill(directory, number):
    """What a training script saves: several files, some of them deeper down, each in several writes, and none
    synced.
    """
    (Path(directory) / "optimizer").mkdir()
    for name in ("model.pt", "optimizer/state.pt"):
        descriptor = os.open(Path(directory) / name, os.O_WRONLY | os.O_CREAT)
        for _ in range(2):
            os.write(descriptor, bytes([number]) * 2500)
        os.close(descriptor)


def number_in(directory):
    """Which checkpoint it is, having looked at all of it."""
    (number,) = {*(Path(directory) / "model.pt").read_bytes()}
    for name in ("model.pt", "optimizer/state.pt"):
        assert bytes([number]) * 5000 == (Path(directory) / name).read_bytes()
    return number


def save(saver, number, **options):
    directory = saver.prepare_checkpoint_directory(**options)
    fill(directory, number)
    saver.symlink_latest(directory)
    return directory


def resume(output_directory, **options):
    """As the documentation has it: a saver, and the number that `os.readlink` leads to."""
    saver = AtomicDirectory(output_directory, **options)
    latest = os.path.join(output_directory, saver.symlink_name)
    return saver, number_in(os.readlink(latest)) if os.path.exists(latest) else None
