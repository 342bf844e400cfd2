"""The clusters' own examples, rewritten: what they say and read. `tests/prove/test_examples_slurm.py` submits them."""

import importlib.util
import io
import random
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import torch

from holdfast.batch.script import ScriptContext
from holdfast.lint import lint_script

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted([*EXAMPLES.rglob("*.sh"), *EXAMPLES.rglob("*.bash")])


def loaded(path):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batch(generator, images):
    """One file of CIFAR-10's binary version: a byte for the label, and three planes of 32 x 32 that hint at it."""
    labels = [generator.randrange(10) for _ in range(images)]
    return b"".join(bytes([label]) + bytes(generator.choices(range(20 * label, 256), k=3072)) for label in labels)


def cifar10(place, images):
    """The archive as it can be had, but smaller."""
    generator = random.Random(0)
    archive = place / "cifar10" / "cifar-10-binary.tar.gz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as tar:
        for name in [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            data = batch(generator, images)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return archive


def code(path):
    """Lines that are neither empty nor a comment; Slurm's directives count."""
    lines = path.read_text().splitlines()
    return [line for line in lines if line.strip() and not re.match(r"\s*#(?!SBATCH)", line)]


def test_lint_finds_nothing_in_the_examples():
    """With the files that lie beside them."""
    assert len(SCRIPTS) >= 4
    for script in SCRIPTS:
        here = {path.name: path.read_text() for path in script.parent.iterdir() if path.is_file()}
        assert [] == lint_script(script.read_text(), ScriptContext(read=here.get)), script


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_can_read_the_examples():
    """Nothing of them is run."""
    for script in SCRIPTS:
        subprocess.run(["bash", "-n", script], check=True)


def test_milas_example_is_shorter_than_the_original():
    """Which has 239 lines of code in main.py and 23 in job.sh, directives included."""
    assert len(code(EXAMPLES / "mila/main.py")) < 239 / 2
    assert len(code(EXAMPLES / "mila/job.sh")) < 23


def test_cifar_10_is_read_as_it_is_laid_out(tmp_path):
    """A label, then the red, the green and the blue plane, row by row; nothing is unpickled."""
    cifar10(tmp_path, images=3)
    with tarfile.open(tmp_path / "cifar10/cifar-10-binary.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    folder = tmp_path / "cifar-10-batches-bin"
    raw = (folder / "data_batch_2.bin").read_bytes()
    images = loaded(EXAMPLES / "mila/main.py").cifar10(folder, "data_batch_1", "data_batch_2")
    assert 6 == len(images)
    image, label = images[4]
    assert raw[3073] == label
    assert (3, 32, 32) == tuple(image.shape)
    assert list(raw[3074 : 3074 + 32]) == image[0, 0].tolist()
    assert list(raw[3074 + 2 * 1024 + 31 * 32 : 2 * 3073]) == image[2, 31].tolist()
    assert torch.uint8 == image.dtype
