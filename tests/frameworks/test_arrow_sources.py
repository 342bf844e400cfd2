"""Parquet and Arrow files, and datasets of Hugging Face, as sources of a stream."""

import random

import pyarrow as pa
import pytest
from datasets import Dataset
from pyarrow import parquet

import sources
from holdfast.data import Arrow, DamagedSample, Kept, Parquet, Skipping, Stream, Window
from holdfast.data.streams import files
from holdfast.errors import UsageError


def table(numbers):
    rows = [{"n": n, "text": sources.text(n), "list": [n] * (n % 3), "none": None} for n in numbers]
    schema = pa.schema(
        [("n", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int32())), ("none", pa.string())]
    )
    return pa.Table.from_pylist(rows, schema)


def write_parquet(path, numbers):
    parquet.write_table(table(numbers), path, row_group_size=3, write_page_checksum=True)
    return path


def write_arrow(path, numbers, compression=None):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(path), table([]).schema, options=options) as writer:
        writer.write_table(table(numbers), max_chunksize=3)
    return path


def read_arrow(path):
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all().to_pylist()


CASES = {
    "parquet": sources.Case(write_parquet, Parquet, lambda path: parquet.read_table(path).to_pylist(), has_index=False),
    "arrow": sources.Case(write_arrow, Arrow, read_arrow),
    "arrow, compressed": sources.Case(lambda path, numbers: write_arrow(path, numbers, "zstd"), Arrow, read_arrow),
}
each_format = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture(autouse=True)
def indexes(tmp_path, monkeypatch):
    """The cache of this test alone, in which indexes of small files are kept, too."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "_KEPT_FROM", 0)
    return tmp_path / "cache"


@each_format
def test_arrow_rows_keep_the_laws_of_sources(case, tmp_path, indexes):
    """Rows of a plain reader, files without samples, files that change, indexes, resumes: tests/sources.py."""
    sources.has_the_rows_of_a_plain_reader(case, tmp_path / "rows")
    sources.takes_files_without_samples(case, tmp_path / "none")
    sources.tells_what_happened_to_a_file(case, tmp_path / "changed")
    for path in [path for path in indexes.rglob("*") if path.is_file()]:
        path.unlink()
    sources.keeps_its_index(case, tmp_path / "index", indexes)
    drawn = sources.combinations(draw=random.Random(2), count=3)
    sources.goes_on_with_other_numbers(case.make(case.files(tmp_path / "resumed")), drawn)


@pytest.mark.parametrize("kind", [Parquet, Arrow])
def test_some_columns_are_read_and_a_missing_one_is_refused(kind, tmp_path):
    """With the names that are there."""
    [path] = CASES[kind.__name__.lower()].files(tmp_path, (9,))
    assert [{"text": sources.text(n), "n": n} for n in range(9)] == [
        {"text": row["text"], "n": row["n"]} for row in kind(path, ["text", "n"])
    ]
    assert {"text", "n"} == {*kind(path, ["text", "n"])[4]}
    with pytest.raises(UsageError, match=r"no columns \['m'\]; it has \['n', 'text', 'list', 'none'\]"):
        kind(path, ["m", "n"])
    path.write_bytes(b"PAR1" * 50)
    with pytest.raises(UsageError, match="part-0: "):
        kind(path)


def test_a_changed_byte_is_found_by_the_checksum_of_its_page(tmp_path):
    """Its row group is damaged, and is skipped where that was asked for."""
    [path] = CASES["parquet"].files(tmp_path, (9,))
    group = parquet.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[group.dictionary_page_offset + group.total_compressed_size - 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedSample, match="part-0: part 1: "):
        Parquet(path).read(range(9))
    stream = Stream(Skipping(Parquet(path, ["n"])), 9, shuffle=False)
    assert [0, 1, 2, 6, 7, 8] == stream[0]["n"].tolist()


def test_a_dataset_of_hugging_face_is_a_source(tmp_path):
    """Its rows are asked for together, and a filter makes a source of some."""
    made = Dataset.from_list([{"n": n, "text": sources.text(n)} for n in range(60)])
    made.save_to_disk(str(tmp_path / "made"))
    loaded = Dataset.load_from_disk(str(tmp_path / "made"))
    stream = Stream(loaded, 8, shuffle=Window(2, 9), collate=list)
    assert [*range(60)] == sorted(row["n"] for batch in stream for row in batch)
    assert all(row == made[row["n"]] for batch in stream for row in batch)
    chosen = Kept(loaded, lambda row: row["n"] < 50)
    sources.goes_on_with_other_numbers(chosen, sources.combinations(draw=random.Random(4), count=2))
    [file] = [each["filename"] for each in loaded.cache_files]
    with pytest.raises(UsageError, match=r"data-.*arrow: "):
        Arrow(file)  # a stream of batches, which has no table of them
