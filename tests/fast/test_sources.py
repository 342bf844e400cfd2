"""Sources: each format is read as a plain reader reads it, at any place, by any number of workers and ranks."""

import bz2
import csv
import errno
import gc
import gzip
import io
import json
import lzma
import os
import random
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sources
from holdfast import disk
from holdfast.data import (
    Arrow,
    CsvRows,
    DamagedSample,
    Documents,
    JsonLines,
    Kept,
    Lines,
    Mix,
    Pack,
    Parquet,
    Records,
    Skipping,
    Stream,
    Tar,
)
from holdfast.data.streams import cache, files, lines
from holdfast.errors import UsageError
from sources import CASES, Layout, read_whole
from subjects import asked_of

each_format = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture(autouse=True)
def indexes(tmp_path, monkeypatch):
    """The cache of this test alone, in which indexes of small files are kept, too."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "_KEPT_FROM", 0)  # not in the processes that a test starts by a command
    cache.warn_unwritable.cache_clear()
    return tmp_path / "cache"


# Every format ---------------------------------------------------------------------------------------------------


@each_format
def test_rows_are_those_of_a_plain_reader(case, tmp_path):
    """Whatever the lengths of the shards, in any order, in this process and others."""
    sources.has_the_rows_of_a_plain_reader(case, tmp_path)


@each_format
def test_files_without_samples_are_shards_of_none(case, tmp_path):
    """Empty files do no harm."""
    sources.takes_files_without_samples(case, tmp_path)


@each_format
def test_a_file_that_was_cut_off_or_changed_is_told(case, tmp_path):
    """With its name and the place; nothing is read of another file than the one that was found."""
    sources.tells_what_happened_to_a_file(case, tmp_path)


@each_format
def test_an_index_is_kept_and_never_trusted(case, tmp_path, indexes):
    """It is used while the file is the same, and is whole and that file's."""
    sources.keeps_its_index(case, tmp_path / "data", indexes)


@each_format
def test_a_resume_with_other_numbers_of_workers_and_ranks_goes_on(case, tmp_path, request):
    """One combination of each format, drawn; tests/prove asks for more."""
    drawn = sources.combinations(draw=random.Random(request.node.name), count=1)
    sources.goes_on_with_other_numbers(case.make(case.files(tmp_path)), drawn)


def test_four_ranks_of_two_workers_go_on_as_three_of_three(tmp_path):
    """What a smaller part of a cluster gives back."""
    source = Lines(CASES["lines"].files(tmp_path))
    sources.goes_on_with_other_numbers(source, lambda batches: [(Layout(4, 2), Layout(3, 3), batches // 2)])


# Lines ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), max_size=30), st.data())
def test_lines_of_any_text_in_pieces_of_any_size(tmp_path_factory, texts, data):
    """Where the pieces that are read end makes no difference, nor a mark of the byte order."""
    path = tmp_path_factory.mktemp("lines") / "text"
    written = "".join(text + data.draw(st.sampled_from(["\n", "\r\n"])) for text in texts)
    path.write_bytes(data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + written.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_CHUNK", data.draw(st.integers(1, 40)))
        assert texts == [*Lines(path)]


FIELDS = st.text(st.sampled_from('a,"\r\n ü'), max_size=5)


@given(st.lists(st.tuples(FIELDS, FIELDS), max_size=20), st.integers(1, 40), st.sampled_from(["\n", "\r\n"]))
def test_rows_of_csv_of_any_text_in_pieces_of_any_size(tmp_path_factory, rows, size, end):
    """Quotes and line ends within fields, as the csv module writes and reads them."""
    path, text = tmp_path_factory.mktemp("csv") / "rows", io.StringIO()
    quoting = csv.QUOTE_MINIMAL if end == "\r\n" else csv.QUOTE_ALL  # else older Pythons do not quote \r
    csv.writer(text, lineterminator=end, quoting=quoting).writerows([("x", "y"), *rows])
    path.write_bytes(text.getvalue().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_CHUNK", size)
        assert [*csv.DictReader(io.StringIO(text.getvalue(), newline=""))] == [*CsvRows(path)]


@given(st.lists(st.sampled_from(["1", " 2", "", " ", "\t", "\r", " \t\r", '"\\n"']), max_size=30), st.integers(1, 9))
def test_blank_lines_of_json_are_no_samples(tmp_path_factory, texts, size):
    """Wherever they are, at the ends, too."""
    path = tmp_path_factory.mktemp("json") / "rows"
    path.write_bytes("\n".join(texts).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_CHUNK", size)
        assert [json.loads(text) for text in texts if text.strip()] == [*JsonLines(path)]


def test_a_damaged_line_is_named_with_its_file_and_byte(tmp_path):
    """Of each format, what it cannot be."""
    for make, data, word in (
        (Lines, b"one\ntw\xff\n", "byte 4: .*utf-8"),
        (JsonLines, b'{"a": 1}\n\n{"a": \n', "byte 10: Input data was truncated"),
        (CsvRows, b"a,b\n1,2,3\n", "byte 4: a row of 3 fields, where the header has 2"),
        (CsvRows, b'a,b\n1,5" disk\n2,6" disk\n', "byte 4: a quote is within"),
        (CsvRows, b'a,b\n1,"5\n2,6\n', "byte 4: unexpected end"),
        (CsvRows, b"a,b\n1,2\r3,4\n", "byte 4: a quote is within a field without quotes, or a line ends"),
    ):
        path = tmp_path / "data"
        path.write_bytes(data)
        with asked_of(data), pytest.raises(DamagedSample, match=f"{path}: {word}"):
            [*make(path)]


def test_a_place_that_the_disk_cannot_read_is_a_damaged_sample(tmp_path, monkeypatch):
    """With file and byte, and what the disk said; the others are read."""
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n")
    source, real = Lines(path), os.pread

    def fails(descriptor, size, offset):
        if offset + size > 4:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", fails)
    assert ["one"] == source.read([0])
    with pytest.raises(DamagedSample, match=f"{path}: byte 4: Input/output error"):
        source.read([1])
    assert [["one"]] == [*Stream(Skipping(source), 2, shuffle=False)]


def test_samples_that_lie_together_are_read_with_one_call(tmp_path, monkeypatch):
    """And those that lie far apart are not read with what is between them."""
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%09d\n" % number for number in range(100_000)))
    source, sizes = Lines(path), []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda *given: sizes.append(given[1]) or real(*given))
    assert ["000000005", "000000000"] == source.read([5, 0])
    assert [60] == sizes
    source.read([0, 99_999, 1])
    assert [60, 20, 10] == sizes


def test_few_files_are_open_at_a_time(tmp_path):
    """However many shards are read; none is open once the source is gone."""
    for number in range(150):
        (tmp_path / f"{number:03}").write_text(f"{number}\n")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    source = Lines(tmp_path / "*")
    assert [*map(str, range(150))] == [*source]
    assert len(os.listdir("/proc/self/fd")) - before <= 64
    del source
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


# The index ------------------------------------------------------------------------------------------------------


def test_where_no_index_can_be_kept_it_is_in_memory_and_that_is_told_once(tmp_path, capsys):
    """A cache directory that is a file: all works, with one warning that names the variable."""
    (tmp_path / "cache").write_text("")
    paths = CASES["lines"].files(tmp_path / "data")
    assert 60 == len(Lines(paths))
    assert 60 == len(Lines(paths))
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("holdfast: warning: ")
    assert "HOLDFAST_CACHE" in line


def test_the_cache_is_where_other_programs_have_theirs(monkeypatch, tmp_path):
    """Unless HOLDFAST_CACHE says where."""
    assert tmp_path / "cache" == cache.cache_dir()
    monkeypatch.delenv("HOLDFAST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert tmp_path / "xdg" / "holdfast" == cache.cache_dir()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path / ".cache" / "holdfast" == cache.cache_dir()


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_long_reading_is_told_by_rank_0(rank, tmp_path, monkeypatch, capfd):
    """With the file and its size; a short one is not."""
    paths = CASES["json"].files(tmp_path / "data")
    JsonLines(paths)
    assert "" == capfd.readouterr().err
    monkeypatch.setattr(files, "_SILENT_S", -1.0)
    monkeypatch.setenv("RANK", rank)
    Kept(JsonLines(CASES["json"].files(tmp_path / "other")), bool)
    told = capfd.readouterr().err
    assert (rank == "0") == ("reading part-2 (" in told) == ("reading all 60 samples, once" in told)


def test_small_files_need_no_index_on_disk(tmp_path, monkeypatch, indexes):
    """They are read as fast as it is."""
    monkeypatch.setattr(files, "_KEPT_FROM", 1 << 20)
    Lines(CASES["lines"].files(tmp_path / "data"))
    assert not indexes.exists()


BUILD = "import sys; from holdfast.data import Lines; print(len(Lines(sys.argv[1:])))"


def test_processes_may_build_one_index_at_once(tmp_path, indexes):
    """Each gets the whole one, and one whole index is left of each file."""
    paths = [tmp_path / f"{number}" for number in range(3)]
    for path in paths:
        path.write_bytes(b"line\n" * 400_000)
    started = [
        subprocess.Popen([sys.executable, "-c", BUILD, *map(str, paths)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert ["1200000\n"] * 3 == [process.communicate(timeout=120)[0] for process in started]
    assert 3 == len([path for path in indexes.rglob("*") if path.is_file()])


def test_a_file_that_is_written_while_it_is_read_is_refused(tmp_path, monkeypatch):
    """Its index would be of no state that it ever had."""
    path = tmp_path / "lines"
    path.write_text("a\n")
    real = os.preadv

    def grows(*given):
        with open(path, "a") as file:
            file.write("b\n")
        return real(*given)

    monkeypatch.setattr(os, "preadv", lambda *given: grows(*given) if path.stat().st_size < 9 else real(*given))
    with pytest.raises(UsageError, match="has changed since"):
        Lines(path)


# Paths ----------------------------------------------------------------------------------------------------------


def test_shards_are_in_the_order_given_and_those_of_a_glob_sorted(tmp_path, monkeypatch):
    """Hidden files and folders are no data; a name with brackets is itself."""
    for name in ("b.txt", "a.txt", "[c].txt", ".hidden.txt", "sub/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "folder.txt").mkdir()
    for paths, expected in (
        (tmp_path / "*.txt", ["[c].txt", "a.txt", "b.txt"]),
        ([tmp_path / "b.txt", str(tmp_path / "a.txt")], ["b.txt", "a.txt"]),
        ([tmp_path / "sub" / "*", tmp_path / "[c].txt"], ["sub/d.txt", "[c].txt"]),
        (tmp_path / "**" / "*.txt", ["[c].txt", "a.txt", "b.txt", "sub/d.txt"]),
    ):
        assert expected == [*Lines(paths)]
    monkeypatch.chdir(tmp_path)
    source = Lines("*.txt")
    monkeypatch.chdir("/")
    assert ["[c].txt", "a.txt", "b.txt"] == [*source]


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_a_compressed_file_is_decompressed_once(tmp_path, monkeypatch, ending, pack):
    """Its copy has the plain file's name and samples. A file that changes gets another copy."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    plain, packed = tmp_path / "a.txt", tmp_path / f"a.txt{ending}"
    plain.write_bytes(b"".join(b"line %d\n" % number for number in range(5000)))
    packed.write_bytes(pack(plain.read_bytes()))
    assert [*Lines(packed)] == [*Lines(plain)]
    assert Lines(packed).shards == Lines(plain).shards
    (copy,) = (tmp_path / "cache/decompressed").rglob("a.txt")
    made = copy.stat()
    assert Lines(packed)[7] == "line 7"
    assert copy.stat() == made
    packed.write_bytes(pack(b"other\n" * 3))
    assert [*Lines(packed)] == ["other"] * 3


def test_a_compressed_tar_is_read_as_the_plain_one(tmp_path, monkeypatch):
    """As .tar.gz and as .tgz."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    plain = CASES["tar"].files(tmp_path / "plain")[0]
    for name in ("a.tar.gz", "a.tgz"):
        (tmp_path / name).write_bytes(gzip.compress(plain.read_bytes()))
        assert [*Tar(tmp_path / name)] == [*Tar(plain)]
        assert Tar(tmp_path / name).shards[0].name == "a.tar"


def test_a_full_disk_is_told_with_the_directory(tmp_path, monkeypatch):
    """And nothing of the copy stays."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a\n" * 999))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(disk, "_write_all", full)
        with pytest.raises(UsageError, match=r"No space left on device; HOLDFAST_CACHE names another"):
            Lines(tmp_path / "a.txt.gz")
    assert [*(tmp_path / "cache").rglob("*a.txt*")] == []
    assert len(Lines(tmp_path / "a.txt.gz")) == 999


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path):
    """And the line says what to do."""
    packed = tmp_path / "a.jsonl.zst"
    packed.write_bytes(b"{}\n")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"a\n" * 9)[:-4])
    (tmp_path / "no.txt.xz").write_bytes(b"no xz")
    (tmp_path / "odd").write_bytes(b"12345")
    good = CASES["documents"].files(tmp_path / "good")[2]
    index = good.with_suffix(".idx").read_bytes()
    (tmp_path / "text.tar").write_text("no tar\n" * 200)
    for words, mistake in {
        r"no data file is .*none-\*": lambda: Lines(tmp_path / "none-*"),
        "no data file is": lambda: Lines([tmp_path]),
        "no data files were given": lambda: Lines([]),
        "is compressed, .*: decompress it": lambda: JsonLines(packed),
        "Compressed file ended": lambda: Lines(tmp_path / "cut.txt.gz"),
        "not supported by decoder": lambda: Lines(tmp_path / "no.txt.xz"),
        "5 bytes are no whole number of int16": lambda: Records(tmp_path / "odd", "i2"),
        "have a fixed size": lambda: Records(tmp_path / "odd", object),
        "length is at least 1": lambda: Records(tmp_path / "odd", "u1", 0),
        "no data file is .*odd.idx": lambda: Documents(tmp_path / "odd"),
        "no index of Megatron-LM": lambda: harmed(good, b"X" + index[1:]),
        "damaged, or of another kind": lambda: harmed(good, index[:-9]),
        "kind: 77": lambda: harmed(good, index[:17] + b"M" + index[18:]),
        "do not follow one another": lambda: harmed(good, index[:34] + b"\x07" + index[35:]),
        "that it has not": lambda: harmed(good, index[:-8] + b"\xff" * 8),
        "tokens of 2 bytes": lambda: cut(good, index),
        "text.tar: ": lambda: Tar(tmp_path / "text.tar"),
        "Pack needs all documents": lambda: Pack(Kept(Skipping([[1]]), bool), 2),
    }.items():
        with asked_of(words), pytest.raises(UsageError, match=words):
            mistake()


def harmed(good, index):
    good.with_suffix(".idx").write_bytes(index)
    return Documents(good)


def cut(good, index):
    good.write_bytes(good.read_bytes()[:-2])
    return harmed(good, index)


def test_parquet_says_what_to_install(monkeypatch, tmp_path):
    """The core needs no pyarrow; tests/frameworks reads such files."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for kind in (Parquet, Arrow):
        with pytest.raises(UsageError, match=r'pip install "holdfast\[parquet\]"'):
            kind(CASES["lines"].files(tmp_path))


# Records and documents ------------------------------------------------------------------------------------------


def test_a_token_file_gives_x_and_y(tmp_path):
    """As nanoGPT takes them: y is x, one token on. Arrays may be written to."""
    tokens = np.arange(103, dtype=np.uint16)
    tokens.tofile(tmp_path / "train.bin")
    source = Records(tmp_path / "train.bin", np.uint16, 10, overlap=1)
    assert 10 == len(source)
    batch = Stream(source, 4, shuffle=False)[1]
    assert tokens[40:80].reshape(4, 10).tolist() == batch[:, :-1].tolist()
    assert tokens[41:81].reshape(4, 10).tolist() == batch[:, 1:].tolist()
    source[0][0] = 7


def test_records_may_have_a_shape(tmp_path):
    """As those of CIFAR-10: a label and an image."""
    data = np.arange(5 * 13, dtype=np.uint8).reshape(5, 13)
    data.tofile(tmp_path / "rows")
    batch = Stream(Records(tmp_path / "rows", np.dtype(("u1", 13))), 5, shuffle=False)[0]
    assert data.tolist() == batch.tolist()


def test_documents_are_packed_by_their_sizes(tmp_path):
    """Without being read for it; several files are one source."""
    files_ = CASES["documents"].files(tmp_path)
    stream = Stream(Pack(Documents([tmp_path / "part-*"]), 6, end=9999), 2, shuffle=False)
    documents = [[*map(int, each), 9999] for path in files_ for each in CASES["documents"].read(path)]
    joined = [token for each in documents for token in each]
    assert joined[: len(joined) // 6 * 6] == np.concatenate([*stream]).ravel().tolist()


def test_the_last_document_may_lack_its_end(tmp_path):
    """Some writers count only where documents begin."""
    path = CASES["documents"].write(tmp_path / "x", [1, 2, 4])
    index = path.with_suffix(".idx").read_bytes()
    path.with_suffix(".idx").write_bytes(index[:26] + (3).to_bytes(8, "little") + index[34:-8])
    assert [[1], [2, 2], [4] * 4] == [each.tolist() for each in Documents(path)]


# Tar ------------------------------------------------------------------------------------------------------------


def test_a_damaged_header_of_a_tar_file_is_told(tmp_path):
    """tarfile would end there, silently, and samples would be missing."""
    path = CASES["tar"].write(tmp_path / "x", range(1, 9))
    with tarfile.open(path) as archive:
        member = archive.getmembers()[9]
    data = bytearray(path.read_bytes())
    data[member.offset + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match=f"byte {member.offset}: the header is damaged"):
        Tar(path)
    path.write_bytes(data[: member.offset_data - 200])
    with pytest.raises(UsageError, match=r"x.tar: "):
        Tar(path)


def test_a_name_that_comes_twice_in_a_sample_is_refused(tmp_path):
    """As WebDataset refuses it: one of the two would be lost."""
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name in ("a.txt", "a.TXT"):
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(UsageError, match=r"a\.TXT is there twice"):
        Tar(tmp_path / "x.tar")


# Datasets with a length -----------------------------------------------------------------------------------------


def test_a_mapped_array_is_a_source(tmp_path):
    """By rows, which are read where they are asked for."""
    np.save(tmp_path / "x.npy", np.arange(60).reshape(20, 3))
    stream = Stream(np.load(tmp_path / "x.npy", mmap_mode="r"), 4)
    rows = sorted(tuple(row) for batch in stream for row in batch.tolist())
    assert [(at, at + 1, at + 2) for at in range(0, 60, 3)] == rows


# Kept -----------------------------------------------------------------------------------------------------------


def test_a_filter_keeps_its_samples_and_no_others(tmp_path):
    """In order, whatever the source; it goes on with other numbers as the source itself does."""
    source = JsonLines(CASES["json"].files(tmp_path))
    chosen = Kept(source, lambda row: row["n"] % 3)
    assert [row for row in source if row["n"] % 3] == [*chosen]
    assert read_whole(chosen) == read_whole(Kept(chosen, lambda row: True))
    assert 0 == len(Kept(source, lambda row: False)) == len(Kept([], bool))
    drawn = sources.combinations(workers=(0,), draw=random.Random(1), count=5)
    sources.goes_on_with_other_numbers(Kept(source, odd_text), drawn)


def odd_text(row):
    return len(row["text"]) != 9


def odd(row):
    return row["n"] % 2


def test_a_choice_with_a_name_is_kept_between_runs(tmp_path):
    """As long as the shards are the same; what was chosen is part of the fingerprint."""
    paths = CASES["json"].files(tmp_path)
    asked = []

    def keep(row):
        return asked.append(row) or row["n"] > 20

    first = Kept(JsonLines(paths), keep, name="late ones")
    assert 60 == len(asked)
    again = Kept(JsonLines(paths), keep, name="late ones")
    assert 60 == len(asked)
    assert read_whole(first) == read_whole(again)
    assert first.fingerprint() == again.fingerprint()
    assert first.fingerprint() != Kept(JsonLines(paths), odd).fingerprint()
    Kept(JsonLines(paths[:3]), keep, name="late ones")
    assert 97 == len(asked)


def test_a_filter_knows_the_sizes_of_what_it_kept(tmp_path):
    """So that Pack need not read."""
    chosen = Kept(Documents(CASES["documents"].files(tmp_path)), lambda tokens: len(tokens) > 2)
    assert [len(each) for each in chosen] == chosen.sizes.tolist()
    assert min(chosen.sizes) > 2


# Damaged samples ------------------------------------------------------------------------------------------------


def damaged_lines(tmp_path):
    """Ten lines of JSON in two files, of which numbers 3 and 8 are damaged."""
    for number in (0, 5):
        lines_ = [f"{at}\n" if at not in (3, 8) else "{x\n" for at in range(number, number + 5)]
        (tmp_path / f"{number}.jsonl").write_text("".join(lines_))
    return tmp_path / "*.jsonl"


def test_a_damaged_sample_ends_the_run_unless_it_is_skipped(tmp_path, capfd, indexes):
    """Then its batch is short, it is told once with file and byte, and later runs leave it out, too."""
    paths = damaged_lines(tmp_path)
    with pytest.raises(DamagedSample, match=r"0.jsonl: byte 6: "):
        [*Stream(JsonLines(paths), 5, shuffle=False)]
    stream = Stream(Skipping(JsonLines(paths)), 5, shuffle=False, map=lambda value: value * 10)
    for _ in range(2):
        assert [[0, 10, 20, 40], [50, 60, 70, 90]] == [batch.tolist() for batch in stream]
    told = capfd.readouterr().err
    assert 1 == told.count("0.jsonl: byte 6:") == told.count("5.jsonl: byte 6:")
    assert 2 == len((indexes / "skipped.jsonl").read_text().splitlines())
    for name in ("0.jsonl", "5.jsonl"):
        (tmp_path / name).write_text((tmp_path / name).read_text().replace("{x", "77"))
    with (indexes / "skipped.jsonl").open("a") as notes:
        notes.write('["0.jsonl",5,')
    assert [0, 1, 2, 77, 4, 5, 6, 7, 77, 9] == [*JsonLines(paths)]
    stream = Stream(Skipping(JsonLines(paths)), 5, shuffle=False)
    assert [[0, 1, 2, 4], [5, 6, 7, 9]] == [batch.tolist() for batch in stream]
    assert "" == capfd.readouterr().err


def test_what_one_worker_has_told_no_other_tells_again(tmp_path, capfd, indexes):
    """Both began before either found it."""
    paths = damaged_lines(tmp_path)
    one, other = (Skipping(JsonLines(paths)) for _ in range(2))
    assert read_whole(one)[4] == 4
    assert 2 == capfd.readouterr().err.count("left out of its batch")
    assert read_whole(other)[:3] == [0, 1, 2]
    assert "" == capfd.readouterr().err
    assert 2 == len((indexes / "skipped.jsonl").read_text().splitlines())


def test_a_shard_of_which_all_wanted_samples_are_left_out_is_not_read(tmp_path):
    """A source need not know what to do with no rows."""
    paths = damaged_lines(tmp_path)
    [*Skipping(JsonLines(paths))]
    again = Skipping(JsonLines(paths))
    vars(again._source)["read_rows"] = None
    assert [again[8]] == again.read_rows(0, [3])


def test_workers_and_ranks_leave_out_the_same(tmp_path):
    """Each finds what is damaged, and the batches go together as if one had read them."""
    from torch.utils.data import DataLoader

    paths = damaged_lines(tmp_path)
    for rank in range(2):
        made = Stream(Skipping(JsonLines(paths)), global_batch_size=5, shuffle=False, ranks=(rank, 2), collate=list)
        assert [[0, 2, 4], [5, 7, 9], [1], [6]][rank * 2 : rank * 2 + 2] == [
            *DataLoader(made, batch_size=None, num_workers=2)
        ]


def test_a_batch_without_a_sample_is_no_batch(tmp_path):
    """It cannot be made, and says so."""
    (tmp_path / "x").write_text("{\n" * 4)
    with pytest.raises(DamagedSample, match="every sample is damaged of the batch at place"):
        Stream(Skipping(JsonLines(tmp_path / "x")), 2)[0]


def test_a_mixture_leaves_out_damaged_samples_of_its_sources(tmp_path):
    """The others keep their places; a filter does not keep them."""
    paths = damaged_lines(tmp_path)
    mixed = Stream(Mix({"a": Skipping(JsonLines(paths)), "b": range(100, 110)}, [1, 1]), 4, collate=list)
    found = [each for batch in mixed for each in batch]
    assert {0, 1, 2, 4, 5, 6, 7, 9, *range(100, 110)} == {*found}
    assert [1, 5, 7, 9] == [*Kept(Skipping(JsonLines(paths)), lambda value: value % 2)]


def test_many_sources_keep_few_files_open(tmp_path):
    """A mixture of four sources, each of 60 files: 64 of them are open at most."""
    for number in range(240):
        (tmp_path / f"{number % 4}-{number}.txt").write_text("a\n")
    before = len(os.listdir("/dev/fd"))
    stream = Stream(Mix([Lines(tmp_path / f"{number}-*.txt") for number in range(4)], until="all"), 240)
    assert 240 == len(stream[0])
    assert len(os.listdir("/dev/fd")) <= before + 64
