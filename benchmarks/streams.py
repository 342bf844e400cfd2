"""Streams beside the loaders of the field: samples a second from the same files, and the time to resume.

Throughput: 16 shards with 6,000 samples of about 600 bytes each, shuffled, in batches of 64, by two workers, over a
whole epoch with the files in memory. Each format is read by Holdfast and by its peers in turn, in one run.
Resume: to the first batch behind a place in the middle of the data, in a fresh process.

One JSON line for each figure: the median and every run. A loader whose package is not here is named on stderr.

    streams.py [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

from streams_resumed import BATCH as SMALL_BATCH
from streams_resumed import LOADERS, import_without_cuda, in_a_process, take

SHARDS, EACH, BATCH, WORKERS = 16, 6000, 64, 2
SAMPLES = SHARDS * EACH
HUGE, DEEP = 10**9, 10**8
RESUMED = ["holdfast.data.Stream", "datasets, its own state", "litData", "MosaicML Streaming"]
Batches = Iterable[Any]


def ours(source: Callable[[Path], Any]) -> Callable[[Path], Batches]:
    def batches(place: Path) -> Batches:
        from torch.utils.data import DataLoader

        from holdfast.data import Stream, Window

        stream = Stream(source(place), BATCH, shuffle=Window(8, 10_000))
        return DataLoader(stream, batch_size=None, num_workers=WORKERS)

    return batches


def our_lines(place: Path) -> Any:
    from holdfast.data import JsonLines

    return JsonLines(place / "*.jsonl")


def our_tar(place: Path) -> Any:
    from holdfast.data import Tar

    return Tar(place / "*.tar")


def our_parquet(place: Path) -> Any:
    from holdfast.data import Parquet

    return Parquet(place / "*.parquet")


def hugging_face(kind: str, ending: str) -> Callable[[Path], Batches]:
    def batches(place: Path) -> Batches:
        import datasets
        from torch.utils.data import DataLoader

        datasets.disable_progress_bars()
        files = sorted(map(str, place.glob(f"*.{ending}")))
        data = datasets.load_dataset(kind, data_files=files, split="train", streaming=True)
        return DataLoader(data.shuffle(seed=0, buffer_size=10_000), batch_size=BATCH, num_workers=WORKERS)

    return batches


def web_dataset(place: Path) -> Batches:
    import webdataset

    files = sorted(map(str, place.glob("*.tar")))
    data = webdataset.WebDataset(files, shardshuffle=SHARDS, seed=0).shuffle(10_000).batched(BATCH, collation_fn=list)
    return webdataset.WebLoader(data, batch_size=None, num_workers=WORKERS)


def lit_data(place: Path) -> Batches:
    import litdata

    data = litdata.StreamingDataset(str(place / "lit"), shuffle=True, seed=0)
    return litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=WORKERS)


def mosaic(place: Path) -> Batches:
    import_without_cuda()
    import streaming

    streaming.base.util.clean_stale_shared_memory()
    data = streaming.StreamingDataset(local=str(place / "mds"), shuffle=True, shuffle_seed=0, batch_size=BATCH)
    return streaming.StreamingDataLoader(data, batch_size=BATCH, num_workers=WORKERS)


READERS: dict[str, Callable[[Path], Batches]] = {
    "JSON lines: holdfast": ours(our_lines),
    "JSON lines: datasets": hugging_face("json", "jsonl"),
    "tar: holdfast": ours(our_tar),
    "tar: WebDataset": web_dataset,
    "Parquet: holdfast": ours(our_parquet),
    "Parquet: datasets": hugging_face("parquet", "parquet"),
    "its own format: litData": lit_data,
    "its own format: MosaicML Streaming": mosaic,
}


# The files ------------------------------------------------------------------------------------------------------


def rows(shard: int) -> list[dict[str, Any]]:
    draws = random.Random(shard)  # noqa: S311  text, not a secret
    words = ["".join(draws.choices("abcdefghijklmnop", k=draws.randrange(2, 10))) for _ in range(500)]
    return [
        {"id": shard * EACH + number, "text": " ".join(draws.choices(words, k=draws.randrange(40, 140)))}
        for number in range(EACH)
    ]


def write(place: Path, name: str) -> None:
    """The same samples in the format of a reader."""
    if name.endswith("litData"):
        import litdata

        everything = [row for shard in range(SHARDS) for row in rows(shard)]
        litdata.optimize(dict, everything, str(place / "lit"), chunk_size=EACH, num_workers=1, verbose=False)
    elif name.endswith("Streaming"):
        import_without_cuda()
        from streaming import MDSWriter

        with MDSWriter(out=str(place / "mds"), columns={"id": "int", "text": "str"}, size_limit=4 << 20) as writer:
            for shard in range(SHARDS):
                for row in rows(shard):
                    writer.write(row)
    elif name.endswith("holdfast"):
        for shard in range(SHARDS):
            FORMATS[name.partition(":")[0]](place / f"{shard:02}", rows(shard))


def as_lines(path: Path, found: list[dict[str, Any]]) -> None:
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))


def as_tar(path: Path, found: list[dict[str, Any]]) -> None:
    with tarfile.open(path.with_suffix(".tar"), "w") as tar:
        for row in found:
            text = json.dumps(row).encode()
            member = tarfile.TarInfo(f"{row['id']:06}.json")
            member.size = len(text)
            tar.addfile(member, BytesIO(text))


def as_parquet(path: Path, found: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(found), path.with_suffix(".parquet"), row_group_size=1000)


FORMATS = {"JSON lines": as_lines, "tar": as_tar, "Parquet": as_parquet}


# The figures ----------------------------------------------------------------------------------------------------


def samples_a_second(batches: Callable[[Path], Batches], place: Path) -> float:
    """From the first batch to the last one: what a loader does once when it begins is not in it."""
    walk = iter(batches(place))
    next(walk)
    started, count = time.perf_counter(), 0
    for batch in walk:
        count += len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch)
    if count < 0.9 * SAMPLES:
        raise RuntimeError(f"{count} samples of {SAMPLES}")
    return count / (time.perf_counter() - started)


class Numbers:
    """A data set of 10**9 samples."""

    def __len__(self) -> int:
        return HUGE

    def __getitem__(self, index: int) -> int:
        return index


def deep() -> tuple[float, float]:
    """Seconds to the batch at sample 10**8 of 10**9, and MiB above what the imports take."""
    from holdfast.data import Stream, Window

    Stream(range(100), BATCH)[0]  # imports what it needs
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    Stream(Numbers(), BATCH, shuffle=Window())[DEEP // BATCH]
    seconds = time.perf_counter() - started
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def seconds_to_resume(name: str, place: Path) -> float:
    """From the making of the loader to its first batch behind half of the data."""
    fine, found = in_a_process(take, LOADERS[name], place, WORKERS, None, SAMPLES // 2 // SMALL_BATCH)
    if not fine:
        raise RuntimeError(found)
    fine, seconds = in_a_process(first_batch, name, place, found[1])
    if not fine:
        raise RuntimeError(seconds)
    return float(seconds)


def first_batch(name: str, place: Path, state: Any) -> float:
    started = time.perf_counter()
    batches, _ = LOADERS[name](place, WORKERS, state)
    next(iter(batches))
    return time.perf_counter() - started


def tell(figure: str, unit: str, runs: list[float]) -> None:
    line = {"table": "streams", "figure": figure, "value": statistics.median(runs), "unit": unit, "runs": runs}
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    runs = [in_a_process(deep) for _ in range(rounds)]
    tell("resume at sample 10^8 of 10^9", "s", [seconds for _, (seconds, _) in runs])
    tell("the same, memory", "MiB", [mebibytes for _, (_, mebibytes) in runs])
    with tempfile.TemporaryDirectory() as kept:
        place = Path(kept)
        os.environ["HOLDFAST_CACHE"] = str(place / "cache")
        here = []
        for name in READERS:
            fine, why = in_a_process(write, place, name)
            print(name, "is written" if fine else f"is left out: {why}", file=sys.stderr)
            here += [name] if fine else []
        found: dict[str, list[float]] = {}
        for turn in range(rounds):
            for name in [*here[turn % len(here) :], *here[: turn % len(here)]]:
                fine, rate = in_a_process(samples_a_second, READERS[name], place)
                if fine:
                    found.setdefault(name, []).append(rate)
                else:
                    print(f"{name}: {rate}", file=sys.stderr)
        for name in filter(found.__contains__, READERS):
            tell(name, "samples/s", found[name])
        for name in RESUMED:
            try:
                seconds = [seconds_to_resume(name, place) for _ in range(rounds)]
            except RuntimeError as error:
                print(f"resume of {name}: {error}", file=sys.stderr)
                continue
            tell(f"resume behind 48,000 samples: {name}", "s", seconds)


if __name__ == "__main__":
    main()
