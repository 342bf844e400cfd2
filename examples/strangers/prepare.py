"""Data for the scripts, made on this machine: where they download a data set, they find one of the same form here."""

import random
import struct
from pathlib import Path
from pydoc_data.topics import topics


def digits(copy: Path) -> None:
    """scikit-learn's handwritten digits in the files of MNIST, 28 x 28, where torchvision looks for them."""
    import numpy as np
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = np.kron(loaded.images * 15.9, np.ones((1, 3, 3))).astype(np.uint8)
    images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    raw = copy / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, chosen in {"train": slice(0, 1000), "t10k": slice(1000, 1200)}.items():
        here, labels = images[chosen], loaded.target[chosen].astype(np.uint8)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, *here.shape) + here.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, len(labels)) + labels.tobytes())


def words(copy: Path) -> None:
    """The help texts of this Python in the files of wikitext-2."""
    text = [line for topic in sorted(topics) for line in topics[topic].splitlines() if line]
    place = copy / "word_language_model" / "data" / "wikitext-2"
    place.mkdir(parents=True, exist_ok=True)
    for name, part in {"train": text[:1400], "valid": text[1400:1600], "test": text[1600:1800]}.items():
        (place / f"{name}.txt").write_text("\n".join(part) + "\n")


def characters(copy: Path) -> None:
    """The same texts as nanoGPT's data set of characters; its own script makes numbers of them."""
    place = copy / "data" / "shakespeare_char"
    (place / "input.txt").write_text("\n".join(topics[topic] for topic in sorted(topics))[:100_000])


def sines(copy: Path) -> None:
    """A data set like that of generate_sine_wave.py, but with 12 waves of 40 points, not 100 of 1,000."""
    import numpy as np
    import torch

    generator = random.Random(2)
    starts = [generator.randint(-80, 80) for _ in range(12)]
    waves = np.array([[np.sin((start + x) / 20) for x in range(40)] for start in starts])
    torch.save(waves, copy / "time_sequence_prediction" / "traindata.pt")


def folders(copy: Path) -> None:
    """The same digits as images in a folder for each class, for training and validation."""
    from PIL import Image
    from sklearn.datasets import load_digits

    loaded = load_digits()
    for number, (image, label) in enumerate(zip(loaded.images[:40], loaded.target, strict=False)):
        place = copy / "imagenet" / "imagenet" / ("train" if number < 28 else "val") / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15.9).astype("uint8")).convert("RGB").save(place / f"{number}.png")
