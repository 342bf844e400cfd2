"""What a resume loses, doubles or reorders, by each loader's own documented means.

1,000 samples in ten shards, shuffled, in batches of 16. A process takes 20 batches, saves what the loader gives as its
state, and ends. Another one makes the loader anew, with the same or with another number of workers, hands the state
back, and reads to the end of the epoch. One JSON line for each: samples lost, samples doubled, whether the order is
that of an epoch without a stop, or what the loader said.

    streams_resumed.py [NAME ...]

A loader whose package is not here is left out, and named on stderr.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tarfile
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

SAMPLES, SHARDS, BATCH, TAKEN = 1000, 10, 16, 20
EACH = SAMPLES // SHARDS
LIMIT_S = 120

Batches = Iterator[list[int]]
State = Any
# Given the directory of the data, the workers and a state (or None): the batches, and what gives the state.
Loader = Callable[[Path, int, State], tuple[Batches, Callable[[], State]]]


def holdfast_stream(place: Path, workers: int, state: State) -> tuple[Batches, Callable[[], State]]:
    from torch.utils.data import DataLoader

    from holdfast.data import JsonLines, Stream, Window
    from holdfast.data.feed import feed_for

    stream = Stream(JsonLines(place / "*.jsonl"), BATCH, shuffle=Window(4, 300))
    feed = feed_for(DataLoader(stream, batch_size=None, num_workers=workers), 0)
    count = [0 if state is None else state["batches"]]

    def batches() -> Batches:
        for batch in feed.open(0, state):
            count[0] += 1
            yield batch["id"].tolist()

    return batches(), lambda: feed.position(count[0])


def hugging_face(buffer: int) -> Loader:
    def loader(place: Path, workers: int, state: State) -> tuple[Batches, Callable[[], State]]:
        import datasets
        from torchdata.stateful_dataloader import StatefulDataLoader

        datasets.disable_progress_bars()
        files = sorted(map(str, place.glob("*.jsonl")))
        data = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
        data = data.shuffle(seed=0, buffer_size=buffer)
        dataloader = StatefulDataLoader(data, batch_size=BATCH, num_workers=workers)
        if state is not None:
            dataloader.load_state_dict(state)
        return (batch["id"].tolist() for batch in dataloader), dataloader.state_dict

    return loader


def hugging_face_alone(place: Path, workers: int, state: State) -> tuple[Batches, Callable[[], State]]:
    import datasets

    if workers != 2:
        raise NotImplementedError("it has no workers of its own")
    datasets.disable_progress_bars()
    files = sorted(map(str, place.glob("*.jsonl")))
    data = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
    data = data.shuffle(seed=0, buffer_size=100)
    if state is not None:
        data.load_state_dict(state)
    rows = iter(data)
    batches = iter(lambda: [row["id"] for row in islice(rows, BATCH)], [])
    return batches, data.state_dict


def web_dataset(place: Path, workers: int, _: State) -> tuple[Batches, Callable[[], State]]:
    """It has no state: its documentation begins the epoch anew."""
    import webdataset

    data = webdataset.WebDataset(sorted(map(str, place.glob("*.tar"))), shardshuffle=SHARDS, seed=0)
    data = (
        data.shuffle(100, seed=0)
        .decode()
        .to_tuple("json")
        .map(lambda each: each[0]["id"])
        .batched(BATCH, collation_fn=list)
    )
    loader = webdataset.WebLoader(data, batch_size=None, num_workers=workers)
    return ([*map(int, batch)] for batch in loader), lambda: None


def torchdata_map_style(_: Path, workers: int, state: State) -> tuple[Batches, Callable[[], State]]:
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    rows = range(SAMPLES)
    loader = StatefulDataLoader(
        rows, batch_size=BATCH, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(0)
    )
    if state is not None:
        loader.load_state_dict(state)
    return (batch.tolist() for batch in loader), loader.state_dict


def grain(_: Path, workers: int, state: State) -> tuple[Batches, Callable[[], State]]:
    import grain as package
    from absl import flags

    flags.FLAGS(sys.argv[:1])  # else it refuses to start a worker
    data = (
        package.MapDataset.source(range(SAMPLES)).shuffle(seed=0).to_iter_dataset().batch(BATCH, drop_remainder=False)
    )
    iterator = iter(data.mp_prefetch(package.MultiprocessingOptions(num_workers=workers)))
    if state is not None:
        iterator.set_state(state)
    return (batch.tolist() for batch in iterator), iterator.get_state


def lit_data(place: Path, workers: int, state: State) -> tuple[Batches, Callable[[], State]]:
    import litdata

    data = litdata.StreamingDataset(str(place / "lit"), shuffle=True, seed=0)
    loader = litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=workers)
    if state is not None:
        loader.load_state_dict(state)
    return (batch["id"].tolist() for batch in loader), loader.state_dict


def import_without_cuda() -> None:
    """Import MosaicML's package without its part for images: the torchvision of the index needs CUDA."""
    for name in ("streaming.vision", "streaming.vision.base"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__getattr__ = lambda _: None


def mosaic(place: Path, workers: int, state: State) -> tuple[Batches, Callable[[], State]]:
    import_without_cuda()
    import streaming

    streaming.base.util.clean_stale_shared_memory()
    data = streaming.StreamingDataset(local=str(place / "mds"), shuffle=True, shuffle_seed=0, batch_size=BATCH)
    loader = streaming.StreamingDataLoader(data, batch_size=BATCH, num_workers=workers)
    if state is not None:
        loader.load_state_dict(state)
    return (batch["id"].tolist() for batch in loader), loader.state_dict


LOADERS: dict[str, Loader] = {
    "holdfast.data.Stream": holdfast_stream,
    "datasets, its own state": hugging_face_alone,
    "datasets in StatefulDataLoader": hugging_face(100),
    "WebDataset": web_dataset,
    "StatefulDataLoader, map style": torchdata_map_style,
    "Grain": grain,
    "litData": lit_data,
    "MosaicML Streaming": mosaic,
}


# The data and the processes -------------------------------------------------------------------------------------


def write_shards(place: Path) -> None:
    """The samples {"id": n}: as JSON lines and as tar."""
    for shard in range(SHARDS):
        ids = range(shard * EACH, (shard + 1) * EACH)
        lines = [json.dumps({"id": number}) + "\n" for number in ids]
        (place / f"{shard:02}.jsonl").write_text("".join(lines))
        with tarfile.open(place / f"{shard:02}.tar", "w") as tar:
            for number, line in zip(ids, lines, strict=True):
                member = tarfile.TarInfo(f"{number:06}.json")
                member.size = len(line)
                tar.addfile(member, BytesIO(line.encode()))


def lit_row(number: int) -> dict[str, int]:
    return {"id": number}


def write_of_peers(place: Path, name: str) -> None:
    if name == "litData":
        import litdata

        litdata.optimize(lit_row, [*range(SAMPLES)], str(place / "lit"), chunk_size=EACH, num_workers=1, verbose=False)
    if name == "MosaicML Streaming":
        import_without_cuda()
        from streaming import MDSWriter

        with MDSWriter(out=str(place / "mds"), columns={"id": "int"}, size_limit=4096) as writer:
            for number in range(SAMPLES):
                writer.write({"id": number})


def in_a_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns, in a process of its own: as after a kill, nothing is left of the first one."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def run() -> None:
        sys.stdout = sys.stderr
        warnings.simplefilter("ignore")
        try:
            there.send((True, work(*arguments)))
        except Exception as error:
            traceback.print_exc()
            last = [type(error).__name__, *str(error).split("\n")]
            there.send((False, ": ".join(filter(None, map(str.strip, last[:1] + last[-2:])))))

    process = context.Process(target=run)
    process.start()
    there.close()
    try:
        found = here.recv() if here.poll(LIMIT_S) else (False, f"it hung for {LIMIT_S} s")
    except EOFError:
        found = False, "it died"
    process.join(5)
    process.kill()
    return found


def take(loader: Loader, place: Path, workers: int, state: State, count: int | None) -> tuple[list[list[int]], State]:
    batches, give_state = loader(place, workers, state)
    taken = [*islice(batches, count)]
    return taken, give_state() if count is not None else None


def resumed(name: str, place: Path, after: int) -> dict[str, Any]:
    """What comes of it with 2 workers before the stop and `after` workers behind it."""
    loader = LOADERS[name]
    (_, whole), (fine, first) = (in_a_process(take, loader, place, 2, None, count) for count in (None, TAKEN))
    if not fine:
        return {"said": first}
    fine, rest = in_a_process(take, loader, place, after, first[1], None)
    if not fine:
        return {"said": rest}
    batches = [*first[0], *rest[0]]
    seen = Counter(number for batch in batches for number in batch)
    return {
        "lost": SAMPLES - len(seen),
        "doubled": sum(count - 1 for count in seen.values()),
        "same_order": batches == whole[0],
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as kept:
        place = Path(kept)
        write_shards(place)
        for name in sys.argv[1:] or LOADERS:
            fine, why = in_a_process(write_of_peers, place, name)
            if not fine:
                print(f"{name}: left out: {why}", file=sys.stderr)
                continue
            for after in (2, 3):
                found = resumed(name, place, after)
                if str(found.get("said", "")).startswith("ModuleNotFoundError"):
                    print(f"{name}: left out: {found['said']}", file=sys.stderr)
                    break
                print(json.dumps({"loader": name, "workers": [2, after], **found}), flush=True)


if __name__ == "__main__":
    main()
