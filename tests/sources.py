"""Sources of each format, with a plain reader beside each, and the laws that all of them keep."""

import csv
import itertools
import json
import os
import pickle
import random
import struct
import tarfile
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch.utils.data import DataLoader

from holdfast.data import CsvRows, Documents, JsonLines, Lines, Records, Stream, Tar, Window
from holdfast.data.feed import feed_for
from holdfast.errors import UsageError
from subjects import asked_of

TEXT = ["", "plain", "größer, 水 🚀", 'a "quoted" word', " spaces ", "\u2028 no line end \x0b", "tab\t", "x" * 300]
ROWS = np.dtype([("x", "<f4", 3), ("y", "i2")])


class Case(NamedTuple):
    """One format: files of it, our source and a plain reader of one file."""

    write: Callable[[Path, list[int]], Path]  # file, the numbers of its samples
    make: Callable[[list[Path]], Any]
    read: Callable[[Path], list[Any]]
    has_index: bool = True

    def files(self, folder, lengths=(7, 0, 30, 1, 22)):
        folder.mkdir(parents=True, exist_ok=True)
        ends = list(itertools.accumulate(lengths))
        return [
            self.write(folder / f"part-{number}", list(range(end - length, end)))
            for number, (length, end) in enumerate(zip(lengths, ends, strict=True))
        ]


def text(number):
    return f"{number} {TEXT[number % len(TEXT)]}" if number % len(TEXT) else ""


def write_lines(path, numbers):
    ends = ["\n", "\r\n"]
    lines = [text(number) + ends[number % 2] for number in numbers]
    path.write_bytes("".join(lines).encode().removesuffix(b"\n" if len(numbers) % 3 else b""))
    return path


def read_lines(path):
    with open(path, encoding="utf-8", newline="\n") as file:
        return [line.removesuffix("\n").removesuffix("\r") for line in file]


def write_json(path, numbers):
    blank = ["", "\n", "\r\n", "  \t \n"]
    rows = [json.dumps({"n": n, "text": text(n)}, ensure_ascii=bool(n % 2)) + "\n" + blank[n % 4] for n in numbers]
    path.write_text("\n \n" * (len(numbers) % 2) + "".join(rows), encoding="utf-8")
    return path


def read_json(path):
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]


def write_csv(path, numbers):
    with open(path, "w", encoding="utf-8", newline="") as file:
        if numbers or path.name.endswith("1"):  # one without samples, but with a header
            file.write('id,"te\nxt",more\r\n')
        for number in numbers:
            writer = csv.writer(file, lineterminator=["\n", "\r\n"][number % 2])
            writer.writerow([number, text(number), "a\r\nb\n\n" * (number % 3)])
            file.write("\n" * (number % 5 == 0))
    return path


def read_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_tokens(path, numbers):
    path.write_bytes(b"head" + np.arange(len(numbers) * 5 + 3, dtype="<u2").tobytes() if numbers else b"")
    return path


def read_tokens(path):
    tokens = np.fromfile(path, "<u2", offset=4) if path.stat().st_size else np.empty(0)
    return [tokens[at : at + 6] for at in range(0, len(tokens) - 5, 5)]


def write_rows(path, numbers):
    path.write_bytes(np.array([((n, n / 7, -n), n) for n in numbers], ROWS).tobytes())
    return path


def write_documents(path, numbers):
    """As Megatron's IndexedDatasetBuilder: each third document is two sequences, and some are empty."""
    sequences, ends = [], [0]
    for number in numbers:
        sequences += [np.full(number % 5, number, "<u2")] * (2 if number % 3 == 0 else 1)
        ends.append(len(sequences))
    path = path.with_suffix(".bin")
    path.write_bytes(b"".join(each.tobytes() for each in sequences))
    sizes = np.array([len(each) for each in sequences], "<i4")
    pointers = (np.cumsum(sizes, dtype="<i8") - sizes) * 2
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, len(sizes), len(ends))
        + sizes.tobytes()
        + pointers.astype("<i8").tobytes()
        + np.array(ends, "<i8").tobytes()
    )
    return path


def read_documents(path):
    """What its bytes say, read in turn."""
    with open(path.with_suffix(".idx"), "rb") as index:
        assert index.read(9) == b"MMIDIDX\x00\x00"
        _, _, sequences, documents = struct.unpack("<QBQQ", index.read(25))
        sizes = np.fromfile(index, "<i4", sequences)
        index.read(8 * sequences)
        ends = np.fromfile(index, "<i8", documents)
    tokens = np.split(np.fromfile(path, "<u2"), np.cumsum(sizes))
    return [np.concatenate([np.empty(0, "<u2"), *tokens[a:b]]) for a, b in itertools.pairwise(ends)]


def write_tar(path, numbers):
    """Names of all lengths, folders, members that are no samples, and a key that comes again later."""
    path = path.with_suffix(".tar")
    with tarfile.open(path, "w", format=[tarfile.GNU_FORMAT, tarfile.PAX_FORMAT][len(numbers) % 2]) as archive:

        def add(name, data):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, BytesIO(data))

        for number in numbers:
            folder = ["", "a.b/ü/", "d" * 120 + "/"][number % 3]
            key = folder + ("again" if number % 10 == 0 else f"{number:04}")
            if number % 7 == 0:
                archive.addfile(tarfile.TarInfo(folder + "link"))
                add(folder + ".hidden", b"no sample")
            add(f"{key}.seg.PNG", os.urandom(number * 40))
            add(f"{key}.json", json.dumps(number).encode())
    return path


def read_tar(path):
    """As WebDataset groups them, by the standard library alone."""
    samples: list[dict[str, Any]] = []
    with tarfile.open(path) as archive:
        for member in archive:
            folder, slash, base = member.name.rpartition("/")
            stem, dot, kind = base.partition(".")
            if member.isfile() and stem and dot:
                key = folder + slash + stem
                if not samples or samples[-1]["__key__"] != key:
                    samples.append({"__key__": key})
                samples[-1][kind.lower()] = archive.extractfile(member).read()
    return samples


CASES = {
    "lines": Case(write_lines, Lines, read_lines),
    "json": Case(write_json, JsonLines, read_json),
    "csv": Case(write_csv, CsvRows, read_csv),
    "tokens": Case(
        write_tokens, lambda paths: Records(paths, "<u2", 5, overlap=1, header_bytes=4), read_tokens, has_index=False
    ),
    "records": Case(write_rows, lambda paths: Records(paths, ROWS), lambda p: [*np.fromfile(p, ROWS)], has_index=False),
    "documents": Case(write_documents, Documents, read_documents, has_index=False),
    "tar": Case(write_tar, Tar, read_tar),
}


def plain(value):
    """A value that can be compared: an array with its type and shape."""
    if isinstance(value, np.ndarray | np.generic):
        return str(value.dtype), value.shape, value.tobytes()
    return value


def as_text(sample):
    """A sample that torch's DataLoader leaves as it is."""
    return repr(plain(sample))


def asked(source, ids):
    return [plain(each) for each in source.read(ids)]


def read_whole(source):
    return asked(source, range(len(source)))


# The laws -------------------------------------------------------------------------------------------------------


def has_the_rows_of_a_plain_reader(case, folder):
    """Law: each shard has them, in order, by number, in any order, twice, in a copy, in processes by fork and spawn."""
    files = case.files(folder)
    expected = [[plain(each) for each in case.read(file)] for file in files]
    source = case.make(files)
    counts = Counter()  # of each file; one may have several shards
    for shard in source.shards:
        counts[shard.name.partition("#")[0]] += shard.samples
    assert {file.name: len(rows) for file, rows in zip(files, expected, strict=True) if rows} == +counts
    joined = [each for rows in expected for each in rows]
    assert len(joined) == len(source) > 50
    assert joined == read_whole(source)
    draw = random.Random(1)
    for _ in range(30):
        ids = draw.choices(range(len(joined)), k=draw.randint(0, 20))
        assert [joined[each] for each in ids] == asked(source, ids)
    assert joined[-1] == plain(source[-1])
    if source.sizes is not None:
        assert [len(each) for each in source] == source.sizes.tolist()
    assert joined == read_whole(pickle.loads(pickle.dumps(source)))
    with get_context("fork").Pool(2) as pool:
        assert [joined, joined] == pool.map(read_whole, [source, source])
    assert source.fingerprint() == case.make(files).fingerprint()


def takes_files_without_samples(case, folder):
    """Law: an empty file is a shard of none."""
    source = case.make(case.files(folder, (0, 0)))
    assert 0 == len(source) == sum(each.samples for each in source.shards)


def tells_what_happened_to_a_file(case, folder):
    """Law: one that was cut off, while it is open or before, is refused, and so is one that was removed. That is no
    damage of single samples, which could be left out.
    """
    files = case.files(folder)
    source = case.make(files)
    whole = read_whole(source)
    size = files[2].stat().st_size
    with open(files[2], "r+b") as file:
        file.truncate(size // 10)
    with pytest.raises(UsageError, match=f"part-2.* has changed .* had {size} bytes"):
        source.read(range(7, 37))
    assert whole[:7] == asked(source, range(7))
    with pytest.raises(UsageError, match=f"part-2.* has changed .* had {size} bytes"):
        pickle.loads(pickle.dumps(source)).read(range(7, 37))
    files[2].unlink()
    with pytest.raises(UsageError, match=r"part-2.*: No such file"):
        pickle.loads(pickle.dumps(source)).read([8])
    with pytest.raises(UsageError, match=r"no data file is .*part-2"):
        case.make(files)


def keeps_its_index(case, folder, cache):
    """Law: a second start does not write it again; a changed file, a damaged or a foreign index are read anew."""
    files = case.files(folder)
    before = read_whole(case.make(files))
    kept = [path for path in cache.rglob("*") if path.is_file()]
    assert len(kept) == (len(files) if case.has_index else 0)
    times = [path.stat().st_mtime_ns for path in kept]
    assert before == read_whole(case.make(files))
    assert times == [path.stat().st_mtime_ns for path in kept]
    harms = (lambda data: data[:-1], lambda data: data[:-3] + b"\x01" + data[-2:], lambda data: b"", bytes.swapcase)
    for harm in harms:
        for path in kept:
            path.write_bytes(harm(path.read_bytes()))
        assert before == read_whole(case.make(files))
    for path, other in itertools.pairwise(kept):  # a whole index, but of another file
        path.write_bytes(other.read_bytes())
    assert before == read_whole(case.make(files))
    case.write(folder / "part-0", [*range(40, 49)])
    changed = read_whole(case.make(files))
    assert len(before) + 2 == len(changed)
    assert before[7:] == changed[9:]


class Layout(NamedTuple):
    ranks: int
    workers: int


def goes_on_with_other_numbers(source, combinations):
    """Law: saved after any batch and resumed with other numbers of ranks and workers, the rest of the epoch is the
    same; each sample comes once. `combinations` are of two layouts and the number of batches before the cut.
    """
    whole, _ = walked(source, Layout(1, 0))
    assert len(whole) > 5
    assert Counter(map(as_text, source)) == Counter(each for batch in whole for each in batch)
    for before, after, cut in combinations(len(whole)):
        with asked_of(before, after, f"cut after {cut}"):
            first, position = walked(source, before, stop=cut)
            rest, _ = walked(source, after, position=position)
            assert cut == len(first)
            assert whole == first + rest


def combinations(ranks=(1, 2, 4), workers=(0, 1, 3), draw=None, count=None):
    """All pairs of layouts, with all cuts; or `count` of them, drawn."""
    layouts = [*itertools.starmap(Layout, itertools.product(ranks, workers))]

    def chosen(batches):
        every = [*itertools.product(layouts, layouts, range(batches + 1))]
        return every if count is None else draw.sample(every, count)

    return chosen


def walked(source, layout, stop=None, position=None):
    """The global batches of epoch 1 from a position up to batch `stop`, merged of all ranks; the position after."""
    begun = 0 if position is None else position["batches"]
    parts, after = [], []
    for rank in range(layout.ranks):
        stream = Stream(
            source,
            global_batch_size=8,
            seed=3,
            shuffle=Window(2, 9),
            map=as_text,
            collate=list,
            ranks=(rank, layout.ranks),
        )
        feed = feed_for(DataLoader(stream, batch_size=None, num_workers=layout.workers), 1)
        batches: Any = feed.open(1, position)
        parts.append([*itertools.islice(batches, None if stop is None else stop - begun)])
        after.append(feed.position(begun + len(parts[-1])))
        batches.close()
    assert all(each == after[0] for each in after)
    return [merged(each) for each in zip(*parts, strict=True)], after[0]


def merged(parts):
    longest = max(map(len, parts))
    return [part[at] for at in range(longest) for part in parts if at < len(part)]
