"""Files that a drilled script writes itself: what a killed attempt has left in them is found."""

import os
import sqlite3
from contextlib import closing

import pytest

from holdfast.drill import files


def held(path, *texts):
    """What the file held after each of three runs."""
    found = []
    for text in texts:
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        found.append(files.read_files([str(path)]))
    return found


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (("a\n", "a\n", "a\n"), ""),
        (("a\n", "a\n", "b\n"), "its content is not that of an undisturbed run"),
        (("1\n", "1\n1\n", "1\n1\n1\n"), ""),
        (("1\n", "1\n1\n", "1\n1\n1\n1\n"), "an undisturbed run added 1 line, and the killed one 2"),
        (("1\n2\n", "1\n2\n1\n2\n", "1\n2\n1\n2\n1\n3\n"), "'2' became '3'"),
        (("x 1\n", "x 1\ny 2\n", "x 1\ny 2\nz 3\n"), ""),
        (("1\n", "1\n1\n", "1\n"), "what earlier runs had written is not there any more"),
        (("1\n", "1\n1\n", None), "is gone"),
    ],
)
def test_what_a_kill_changed_in_a_file_is_said(tmp_path, texts, said):
    """A file that is written anew, and one that grows: by the lines that a run adds, unless these differ anyway."""
    found, compared = files.compare_files(*held(tmp_path / "rows.csv", *texts))
    assert [f"{tmp_path / 'rows.csv'}: {said}"] * bool(said) == [str(each) for each in found]
    assert compared == (said != "is gone")


def test_a_file_that_two_undisturbed_runs_write_otherwise_is_not_compared(tmp_path):
    """Nor one that only some of the runs have written."""
    assert ([], 0) == files.compare_files(*held(tmp_path / "log", "at 12:01", "at 12:02", "at 12:03"))
    (tmp_path / "new").write_text("x")
    assert ([], 0) == files.compare_files({}, {}, files.read_files([str(tmp_path / "new")]))


def test_rows_of_a_database_are_counted_by_table(tmp_path):
    """Two kinds of names, one of them with a quote."""
    path, seen = tmp_path / "rows.db", []
    for rows in (2, 2, 3):
        with closing(sqlite3.connect(path)) as database:
            for table in ('"steps"', '"it""s"'):
                database.execute(f"CREATE TABLE IF NOT EXISTS {table} (a)")
                for _ in range(rows if table == '"steps"' else 1):
                    database.execute(f"INSERT INTO {table} VALUES (1)")
            database.commit()
        seen.append(files.read_files([str(path)]))
    found, compared = files.compare_files(*seen)
    assert ["an undisturbed run added 2 rows to steps, and the killed one 3"] == [each.what for each in found]
    assert 1 == compared


def test_what_cannot_be_read_is_left_out(tmp_path):
    """A pipe, too: nobody writes to it, and a read would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken.db").write_bytes(b"SQLite format 3\x00 and no more")
    (tmp_path / "place").mkdir()
    assert {} == files.read_files([str(tmp_path / name) for name in ("broken.db", "place", "nothing", "pipe")])


def test_files_that_were_there_and_have_changed_are_named(tmp_path):
    """New files, hidden ones and those that stay are not; of many the first few, with how many more there are."""
    (tmp_path / "out").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("out/best.pt", "kept.txt", "gone.txt", ".hidden/x"):
        (tmp_path / name).write_text("of the user")
    before = files.list_files(tmp_path)
    assert "" == files.describe_overwritten(tmp_path, before)
    (tmp_path / "out/best.pt").write_text("of a drilled run")
    (tmp_path / "new.txt").write_text("new")
    (tmp_path / ".hidden/x").write_text("hidden and changed")
    (tmp_path / "gone.txt").unlink()
    line = files.describe_overwritten(tmp_path, before)
    assert line.startswith("the script has written over files that were here: out/best.pt; ")
    many = {f"f{at}": (0, 0) for at in range(9)}
    for name in many:
        (tmp_path / name).write_text("changed")
    assert "f0, f1, f2, f3, f4 and 4 more; " in files.describe_overwritten(tmp_path, many)
