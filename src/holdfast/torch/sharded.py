"""Images in one folder for each class,
divided among the ranks and held in memory or on a device.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..data.split import RankSplit, assign_places
from ..errors import UsageError
from ..threads import WorkerPool
from .world import world

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
THREADS = 8  # for decoding images: Pillow releases the interpreter's lock
AHEAD = 2 * THREADS  # images to decode before they are requested

Sample = tuple[str, int]  # path, class


def pil_loader(path: str) -> Any:
    """Return the image at `path`, as Pillow's Image in RGB.

    Raises:
        UsageError: Pillow is not installed, or the file is not an image that it can read
            completely.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError('reading images needs Pillow: pip install "holdfast[images]"') from error
    try:
        with open(path, "rb") as file, Image.open(file, "r") as image:
            return image.convert("RGB")
    except (
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
    ) as error:  # SyntaxError: a broken PNG
        raise UsageError(f"{path}: Pillow cannot read this image: {error}") from error


def image_tensor(image: Any) -> Tensor:
    """Return a Pillow image as uint8 [channels, height, width]; a tensor is returned unchanged."""
    if isinstance(image, Tensor):
        return image
    if not hasattr(image, "getbands"):
        raise UsageError(
            f"a {type(image).__name__} is neither a tensor nor an image: "
            "let sample_load_transform make one"
        )
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width, len(image.getbands())).permute(2, 0, 1).contiguous()


class DistributedShardedDataset:
    """The images below `root`, one folder for each class. Each rank holds its shard of them.

    All ranks shuffle the list in the same way, from `seed`, and take its images in turn. A rank
    that holds more than its share also holds the shares of the next ranks. So by default each image
    is held once (or by two ranks, if their number does not divide the count); with 1.0 every rank
    holds all. Use InterruptibleSampler(dataset), which yields the whole shard.

    Shards depend on the number of ranks: a resume on another number must begin at an epoch's start.

    Args:
        root: contains a folder for each class, as for torchvision's ImageFolder; the classes are
            sorted by name.
        rank, world_size: by default those of the process group.
        samples_pct_per_replica: the fraction of all samples that each rank holds, up to 1.0; by
            default one share.
        device_id: hold samples and targets there, each as one tensor; samples must then have one
            shape.
        seed, shuffle: for the order of the list before it is divided.
        loader: called with a path.
        extensions, is_valid_file: which files count, by name or by a function of the path.
        sample_load_transform, target_load_transform: applied once, when loading, for example
            torchvision's. For a device, images that are no tensors yet become uint8 [channels,
            height, width].
        sample_getitem_transform, target_getitem_transform: applied at each read, for augmentation.

    Raises:
        UsageError: no class, no image, one that cannot be read, samples of several shapes for a
            device.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        rank: int | None = None,
        world_size: int | None = None,
        samples_pct_per_replica: float | None = None,
        device_id: str | int | torch.device | None = None,
        seed: int = 0,
        shuffle: bool = True,
        loader: Callable[[str], Any] = pil_loader,
        extensions: tuple[str, ...] | None = IMG_EXTENSIONS,
        sample_load_transform: Callable[[Any], Any] | None = None,
        target_load_transform: Callable[[Any], Any] | None = None,
        sample_getitem_transform: Callable[[Any], Any] | None = None,
        target_getitem_transform: Callable[[Any], Any] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
    ) -> None:
        self.root = os.fspath(root)
        self.rank, self.world_size = world(rank, world_size)
        self.classes, self.class_to_idx = self.find_classes(self.root)
        everything = self.make_dataset(self.root, self.class_to_idx, extensions, is_valid_file)
        if shuffle:
            random.Random(seed).shuffle(everything)  # noqa: S311  so that the training's random stream does not change
        self.count_of_all = len(everything)
        count = _samples_per_rank(self.count_of_all, self.world_size, samples_pct_per_replica)
        self.files = [
            everything[place]
            for place in assign_places(
                RankSplit(len(everything), self.world_size, self.rank), count
            )
        ]
        self.shards = [seed if shuffle else None, self.world_size, count]
        self.sample_getitem_transform = sample_getitem_transform
        self.target_getitem_transform = target_getitem_transform

        loaded = map(
            partial(_apply, sample_load_transform),
            _load_all(loader, [path for path, _ in self.files]),
        )
        self.samples: Any = list(loaded) if device_id is None else self._on(device_id, loaded)
        self.targets: Any = [_apply(target_load_transform, target) for _, target in self.files]
        if device_id is not None:
            self.targets = torch.stack([torch.as_tensor(target) for target in self.targets]).to(
                device_id
            )

    @staticmethod
    def find_classes(directory: str) -> tuple[list[str], dict[str, int]]:
        """Return the names of the folders in `directory`, sorted, and the number of each."""
        try:
            classes = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
        except OSError as error:
            raise UsageError(
                f"{directory}: cannot look for class folders: {error.strerror}"
            ) from error
        if not classes:
            raise UsageError(f"{directory} has no folders: it needs one for each class")
        return classes, {name: number for number, name in enumerate(classes)}

    @staticmethod
    def make_dataset(
        directory: str,
        class_to_idx: dict[str, int],
        extensions: tuple[str, ...] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
    ) -> list[Sample]:
        """Return (path, class) of every file that counts,
        class by class, sorted by name; links are followed.
        """
        ends = IMG_EXTENSIONS if extensions is None else tuple(extensions)
        counts = is_valid_file or (lambda path: path.lower().endswith(ends))
        found: list[Sample] = []
        for name, number in sorted(class_to_idx.items()):
            walk = sorted(
                os.walk(os.path.join(directory, name), onerror=_unreadable, followlinks=True)
            )
            paths = (
                os.path.join(place, file) for place, _, files in walk for file in sorted(files)
            )
            mine = [(path, number) for path in paths if counts(path)]
            if not mine:
                raise UsageError(
                    f"{os.path.join(directory, name)} has no file that counts: {', '.join(ends)}"
                )
            found += mine
        return found

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        sample, target = self.samples[index], self.targets[index]
        return _apply(self.sample_getitem_transform, sample), _apply(
            self.target_getitem_transform, target
        )

    def _on(self, device: str | int | torch.device, samples: Iterable[Any]) -> Tensor:
        """Return the samples as one tensor on `device`.
        Copied one by one: the host holds only a few.
        """
        held: Tensor | None = None
        for place, (sample, (path, _)) in enumerate(zip(samples, self.files, strict=True)):
            found = image_tensor(sample)
            if held is None:
                held = torch.empty(
                    (len(self.files), *found.shape), dtype=found.dtype, device=device
                )
            if found.shape != held.shape[1:] or found.dtype != held.dtype:
                raise UsageError(
                    f"{path}: its sample is {found.dtype} {list(found.shape)}, "
                    f"those before are {held.dtype}"
                    f" {list(held.shape[1:])}: on a device all need one shape, "
                    "which sample_load_transform can give"
                )
            held[place] = found
        return torch.empty(0, device=device) if held is None else held


def _unreadable(error: OSError) -> None:
    """Raise an error that os.walk would ignore."""
    raise UsageError(f"{error.filename}: cannot look for images: {error.strerror}") from error


def _samples_per_rank(length: int, world_size: int, fraction: float | None) -> int:
    """Return the number of samples for each rank."""
    if fraction is None:
        return -(-length // world_size)
    if not 0 < fraction <= 1:
        raise UsageError(
            f"samples_pct_per_replica={fraction}: a fraction of all samples, above 0, up to 1.0"
        )
    # 0.1 of 30 must be 3 in spite of binary fractions
    return math.ceil(round(fraction * length, 6))


def _apply(transform: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if transform is None else transform(value)


def _load_all(loader: Callable[[str], Any], paths: list[str]) -> Iterator[Any]:
    """Yield the result of `loader` for each path, in order. Our own loader decodes a few images
    ahead, in threads.
    """
    with closing(WorkerPool[None](THREADS)) as pool:
        if loader is not pil_loader or not pool.start_thread():  # or if the system gives no thread
            yield from map(loader, paths)
            return
        found: dict[int, Any] = {}

        def load(number: int) -> None:
            found[number] = loader(paths[number])

        for number in range(len(paths) + AHEAD):
            if number < len(paths):
                pool.submit(partial(load, number))
            if number >= AHEAD:
                while number - AHEAD not in found:
                    list(pool.results())
                yield found.pop(number - AHEAD)
