"""A folder of images, divided over the ranks: real files, as PNG, JPEG and what Pillow knows."""

import builtins
import os
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from holdfast import Every, Run
from holdfast.data import Seeded
from holdfast.errors import Mismatch, UsageError
from holdfast.torch.samplers import InterruptibleSampler
from holdfast.torch.sharded import DistributedShardedDataset, image_tensor

COUNT = 61  # no number of ranks from 2 to 7 divides it
PIXELS = np.arange(COUNT * 64).reshape(COUNT, 8, 8).astype(np.uint8)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """One folder a class; a picture's name says which of them it is."""
    root = tmp_path_factory.mktemp("digits")
    for number, pixels in enumerate(PIXELS):
        (root / str(number % 10)).mkdir(exist_ok=True)
        kind = "png" if number % 2 else "JPEG"
        Image.fromarray(pixels).save(root / str(number % 10) / f"{number:03}.{kind}", quality=95)
    (root / "3" / "notes.txt").write_text("no image")
    return root


def numbers(dataset):
    return [int(os.path.basename(path)[:3]) for path, _ in dataset.files]


def test_every_image_has_its_class_and_its_pixels(digits):
    """PNG keeps each pixel, JPEG nearly; the classes are the folders, sorted; other files are no images."""
    dataset = DistributedShardedDataset(digits, shuffle=False, sample_load_transform=image_tensor)
    assert dataset.classes == [str(digit) for digit in range(10)]
    assert sorted(numbers(dataset)) == list(range(COUNT))
    assert [os.path.basename(path) for path, _ in dataset.files if f"{os.sep}0{os.sep}" in path] == sorted(
        os.listdir(digits / "0")
    )
    for place, number in enumerate(numbers(dataset)):
        image, target = dataset[place]
        assert (image.dtype, image.shape, target) == (torch.uint8, (3, 8, 8), number % 10)
        off = (image.double() - torch.tensor(PIXELS[number])).abs().max()
        assert off <= (0 if number % 2 else 12)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_the_ranks_hold_each_image_between_them(digits, world):
    """As many each; no more of them twice than it takes for that."""
    shards = [numbers(DistributedShardedDataset(digits, rank, world, seed=2)) for rank in range(world)]
    assert {len(shard) for shard in shards} == {-(-COUNT // world)}
    assert {number for shard in shards for number in shard} == set(range(COUNT))


def test_a_fraction_is_a_fraction_of_all(digits):
    """Up to all of them on each rank; never one twice on the same rank; none for nothing."""
    for fraction, count in ((1.0, COUNT), (0.5, 31), (6 / COUNT, 6), (0.001, 1)):
        for rank in range(2):
            held = numbers(DistributedShardedDataset(digits, rank, 2, fraction))
            assert len(held) == len(set(held)) == count
    for fraction in (0, -0.1, 1.1):
        with pytest.raises(UsageError, match="a fraction of all samples"):
            DistributedShardedDataset(digits, 0, 2, fraction)


def test_the_shards_come_from_the_seed_alone(digits):
    """The same on each rank and in each process; the training's own random numbers stand still."""
    before = random.getstate()
    one, again = (numbers(DistributedShardedDataset(digits, 1, 2, seed=7)) for _ in range(2))
    other = numbers(DistributedShardedDataset(digits, 1, 2, seed=8))
    assert one == again != other
    assert random.getstate() == before


def test_on_a_device_all_is_two_tensors(digits):
    """Images as uint8, targets as integers; or what the transforms make of them."""
    dataset: Any = DistributedShardedDataset(digits, 0, 2, device_id="cpu", seed=1)
    assert (dataset.samples.shape, dataset.samples.dtype) == ((31, 3, 8, 8), torch.uint8)
    assert dataset.targets.tolist() == [int(target) for _, target in dataset.files]
    in_memory: Any = DistributedShardedDataset(digits, 0, 2, seed=1, sample_load_transform=image_tensor)
    assert all(torch.equal(held[0], there[0]) for held, there in zip(dataset, in_memory, strict=True))

    def grey(image):
        return image_tensor(image.convert("L")).float() / 255

    transformed = DistributedShardedDataset(
        digits,
        0,
        2,
        device_id="cpu",
        sample_load_transform=grey,
        target_load_transform=lambda target: float(target > 4),
    )
    assert (transformed.samples.shape, transformed.targets.dtype) == ((31, 1, 8, 8), torch.float32)


def test_transforms_at_each_read(digits):
    """Augmentation: with Seeded it depends on the epoch and the image, and on nothing else."""
    dataset = DistributedShardedDataset(
        digits,
        sample_load_transform=image_tensor,
        sample_getitem_transform=lambda image: image.float() + torch.rand(()),
        target_getitem_transform=lambda target: -target,
    )
    sampler = InterruptibleSampler(dataset, seed=3)
    loader = DataLoader(Seeded(dataset, seed=1), 16, sampler=sampler)

    def epoch(number):
        sampler.set_epoch(number)
        return torch.cat([images for images, _ in loader])

    first, second = epoch(0), epoch(1)
    assert torch.equal(first, epoch(0))
    assert not torch.equal(first.sort(dim=0).values, second.sort(dim=0).values)
    assert dataset[5][1] == -dataset.targets[5]
    dataset.sample_getitem_transform = dataset.target_getitem_transform = None  # for an evaluation
    assert (dataset.samples[0], dataset.targets[0]) == dataset[0]


def test_shapes_that_differ_are_refused_on_a_device(digits, tmp_path):
    """With the file's name; in memory they may differ."""
    (tmp_path / "a").mkdir()
    for name, size in (("1.png", (8, 8)), ("2.png", (8, 9))):
        Image.new("RGB", size).save(tmp_path / "a" / name)
    assert len(DistributedShardedDataset(tmp_path)) == 2
    with pytest.raises(UsageError, match=r"2\.png: its sample is torch\.uint8 \[3, 9, 8\], those before are"):
        DistributedShardedDataset(tmp_path, shuffle=False, device_id="cpu")
    with pytest.raises(UsageError, match="a str is neither a tensor nor an image"):
        DistributedShardedDataset(tmp_path, device_id="cpu", loader=lambda path: path)


def test_what_is_no_tree_of_images_is_refused(digits, tmp_path):
    """No root, no class, an empty class, half a file: each says where, and never leaves samples out."""
    with pytest.raises(UsageError, match="no-such: cannot look for class folders: No such file"):
        DistributedShardedDataset(tmp_path / "no-such")
    with pytest.raises(UsageError, match="has no folders: it needs one for each class"):
        DistributedShardedDataset(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(UsageError, match=r"a has no file that counts: \.jpg"):
        DistributedShardedDataset(tmp_path)
    whole = next((digits / "1").glob("*.png")).read_bytes()
    for data in (whole[: len(whole) // 2], b"GIF", b""):
        (tmp_path / "a" / "half.png").write_bytes(data)
        with pytest.raises(UsageError, match=r"half\.png: Pillow cannot read this image"):
            DistributedShardedDataset(tmp_path)
    assert len(DistributedShardedDataset(tmp_path, loader=lambda path: 1, is_valid_file=os.path.exists)) == 1


def test_without_pillow_it_says_what_to_install(digits, monkeypatch):
    """And a loader of one's own does not need it."""
    real = builtins.__import__

    def without(name, *more):
        if name.split(".")[0] == "PIL":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r'needs Pillow: pip install "holdfast\[images\]"'):
        DistributedShardedDataset(digits)
    assert len(DistributedShardedDataset(digits, loader=lambda path: torch.zeros(1), device_id="cpu")) == COUNT


def test_an_epoch_begun_on_other_shards_does_not_go_on(digits):
    """An index means another image there; where an epoch begins or has ended, any number of ranks goes on."""

    def sampler(world):
        return InterruptibleSampler(DistributedShardedDataset(digits, 0, world), seed=1)

    before, same = sampler(2), sampler(2)
    before.set_epoch(3)
    before.advance(10)
    same.load_state_dict(before.state_dict())
    assert list(same) == list(before)
    for world in (1, 3):
        with pytest.raises(
            Mismatch, match=r"epoch 3 was begun on the shards \[0, 2, 31\].*continue with as many ranks"
        ):
            sampler(world).load_state_dict(before.state_dict())
    before.advance(21)
    after = sampler(3)
    after.load_state_dict(before.state_dict())
    assert (after.epoch, after.position, after.remaining) == (4, 0, 21)
    before.reset_progress()
    after.load_state_dict(before.state_dict())
    assert (after.epoch, after.position) == (3, 0)


def test_nor_does_it_under_a_run(digits, tmp_path):
    """Although each rank holds as many as before, these are others."""

    def train(world, cut=None):
        dataset = DistributedShardedDataset(digits, 0, world, 0.25, sample_load_transform=image_tensor)
        loader = DataLoader(dataset, 4, sampler=InterruptibleSampler(dataset))
        with Run(tmp_path / "run", {}, every=Every(steps=1), background=False, take_over=True) as run:
            for _ in run.epochs(2):
                for number, _ in enumerate(run.batches(loader)):
                    if number == cut:
                        raise KeyboardInterrupt
        return run.step

    with pytest.raises(KeyboardInterrupt):
        train(2, 2)
    with pytest.raises(Mismatch, match=r"shards was \[0, 2, 16\], is \[0, 3, 16\]"):
        train(3)
    assert train(2) == 8
