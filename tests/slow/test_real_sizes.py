"""Writing and reading with requests, pieces and threads as they are shipped, not made small for a test."""

import test_bulk
import test_reading

from holdfast import bulk


def test_the_engine_as_shipped_writes_what_is_larger_than_its_buffers(tmp_path):
    """From pages, and from the middle of one."""
    size = 2 * bulk.BUFFERS * bulk.CHUNK_BYTES + 12345
    data = test_bulk.bytes_of(size)
    for number, kind in enumerate(["at a page", "inside a page"]):
        test_bulk.written(tmp_path / str(number), [bulk.MemoryRun(test_bulk.laid(kind, data), [5, size - 5])])


def test_files_come_back_cold_and_warm(tmp_path):
    """One leaf in many pieces, and many leaves in one."""
    for size in (1 << 20, (3 << 20) + 5, 40 << 20):
        path = tmp_path / str(size)
        places, contents = test_reading.write(path, [size, 1000, size // 3])
        for warm in (test_reading.cool, test_reading.cool, type(path).read_bytes):
            warm(path)
            assert contents == test_reading.filled(places)
