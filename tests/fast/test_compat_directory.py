"""AtomicDirectory, in one process: the link names a whole checkpoint, whatever happens, and scripts find it as ever."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from compat_scripts import LINK, fill, number_in, resume, save
from faults import Memory, counting, door, failing, scratched
from holdfast.compat.cycling_utils import AtomicDirectory
from holdfast.compat.numbered import sync_tree
from holdfast.errors import NotFound, StoreError, UsageError
from stores import in_a_child


def there(output_directory):
    return sorted(os.listdir(output_directory))


# What is documented ----------------------------------------------------------------------------------------------


def test_the_documented_loop(tmp_path, monkeypatch):
    """Prepare, save, symlink; then a new process reads the link. With a relative path as well, and by either name."""
    monkeypatch.chdir(tmp_path)
    for output_directory in ("out", "./deeper/out/", tmp_path / "absolute"):
        saver, found = resume(output_directory)
        assert found is None
        for number in range(3):
            directory = saver.prepare_checkpoint_directory()
            assert os.path.join(output_directory, f"AtomicDirectory_checkpoint_{number}") == directory
            assert os.listdir(directory) == []
            fill(directory, number)
            (saver.symlink_latest if number % 2 else saver.atomic_symlink)(directory)
            _, found = resume(output_directory)
            assert number == found


def test_a_checkpoint_directory_is_known_by_its_name(tmp_path):
    """Its number as text, with what was forced; None for what is no directory, or of another saver."""
    saver = AtomicDirectory(tmp_path)
    first, second = save(saver, 1), save(saver, 2, force_save=True)
    (tmp_path / "AtomicDirectory_checkpoint_7").touch()
    (tmp_path / "other_checkpoint_0").mkdir()
    found = {name: saver.is_checkpoint_directory(path_str=tmp_path / name) for name in there(tmp_path)}
    kept = {os.path.basename(first): "0", os.path.basename(second): "1_force"}
    assert kept == {name: suffix for name, suffix in found.items() if suffix is not None}
    assert len(found) == 5
    assert saver.is_checkpoint_directory(os.path.join(tmp_path, "AtomicDirectory_checkpoint_8")) is None


def test_one_process_needs_no_options_no_device_and_no_group(tmp_path):
    """`AtomicDirectory(path)` alone: a lone process is the master, whatever `is_master`, `device` and `strategy` say.

    Each strategy has the name that it documents.
    """
    ways: list[dict[str, Any]] = [{}, {"is_master": False}, {"is_master": True}, {"device": "cuda"}, {"device": "cpu"}]
    ways += [{"name": "mine", "strategy": strategy} for strategy in ("sync_any", "sync_all", "async", "mono")]
    for number, options in enumerate(ways):
        place = tmp_path / str(number)
        saver = AtomicDirectory(place, **options)
        name = options.get("name", "AtomicDirectory") + "_rank_0" * (options.get("strategy") == "async")
        assert (True, name, f"{name}.latest_checkpoint") == (saver.is_master, saver.name, saver.symlink_name)
        assert f"{name}_checkpoint_0_force" == os.path.basename(save(saver, 1, force_save=True))
        assert f"{name}_checkpoint_1" == os.path.basename(save(saver, 2))
        assert resume(place, **options)[1] == 2


def test_an_async_rank_without_a_group_has_torchruns_number(tmp_path, monkeypatch):
    """Ranks that save on their own need nobody."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert AtomicDirectory(tmp_path, strategy="async").symlink_name == "AtomicDirectory_rank_3.latest_checkpoint"
    assert AtomicDirectory(tmp_path, strategy="mono").symlink_name == LINK


def test_ranks_that_save_together_need_a_process_group(tmp_path, monkeypatch):
    """Else each would take itself for the master of all."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="init_process_group"):
        AtomicDirectory(tmp_path)


def test_savers_of_several_names_share_a_directory(tmp_path):
    """Names that begin alike, too."""
    savers = [AtomicDirectory(tmp_path, name=name, keep_last=1) for name in ("a", "a_checkpoint_0", "a.b")]
    for number, saver in enumerate(savers):
        save(saver, 10 * number)
        save(saver, 10 * number + 1)
    for number, saver in enumerate(savers):
        assert resume(tmp_path, name=saver.name)[1] == 10 * number + 1


@pytest.mark.parametrize("keep_last", [-1, 0, 1, 2, 3])
def test_keep_last_counts_the_latest_and_spares_the_forced(tmp_path, keep_last):
    """0 or less keeps all."""
    saver = AtomicDirectory(tmp_path, keep_last=keep_last)
    for number in range(6):
        save(saver, number, force_save=number == 1)
        newest = range(number + 1) if keep_last <= 0 else range(max(0, number + 1 - keep_last), number + 1)
        expected = {f"AtomicDirectory_checkpoint_{each}{'_force' if each == 1 else ''}" for each in newest}
        expected |= {"AtomicDirectory_checkpoint_1_force"} if number >= 1 else set()
        assert {LINK, *expected} == {*there(tmp_path)}


def test_what_was_never_finished_goes_with_the_next_and_is_told(tmp_path, capsys):
    """Begun, half-filled, and the process gone: the number is used again."""
    saver = AtomicDirectory(tmp_path)
    for finished in (None, 0, 1):
        if finished is not None:
            save(saver, finished)
        for force in (False, True):
            fill(saver.prepare_checkpoint_directory(force_save=force), 9)
        assert "was begun and never finished" in capsys.readouterr().err
        saver, found = resume(tmp_path)
        assert finished == found


@pytest.mark.parametrize(
    ("options", "message"),
    [({"strategy": "sync"}, "none of sync_any"), ({"name": "a/b"}, "a file's name"), ({"name": ""}, "a file's name")],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path, options, message):
    """With what there is to choose from."""
    with pytest.raises(UsageError, match=message):
        AtomicDirectory(tmp_path, **options)


def test_only_what_was_prepared_becomes_the_latest(tmp_path):
    """Anything else would be a link into nowhere."""
    saver = AtomicDirectory(tmp_path / "out")
    (tmp_path / "AtomicDirectory_checkpoint_0").mkdir()
    (tmp_path / "out" / "other").mkdir()
    for wrong in (tmp_path / "AtomicDirectory_checkpoint_0", tmp_path / "out" / "other", tmp_path / "out"):
        with pytest.raises(UsageError, match="prepare_checkpoint_directory"):
            saver.symlink_latest(wrong)
    first = saver.prepare_checkpoint_directory()
    saver.prepare_checkpoint_directory(force_save=True)
    with pytest.raises(NotFound, match="removes unfinished ones"):
        saver.symlink_latest(first)
    assert not os.path.lexists(tmp_path / "out" / LINK)


# Faults of the original, not copied ------------------------------------------------------------------------------


def test_the_link_is_relative_whenever_something_is_saved(tmp_path):
    """Fault: links were absolute. From the first `prepare` on they are names; before, `os.readlink` shows a path."""
    saver = AtomicDirectory(tmp_path)
    save(saver, 1)
    assert os.readlink(tmp_path / LINK) == "AtomicDirectory_checkpoint_0"
    saver = AtomicDirectory(tmp_path)
    assert os.readlink(tmp_path / LINK) == str(tmp_path / "AtomicDirectory_checkpoint_0")
    saver.prepare_checkpoint_directory()
    assert os.readlink(tmp_path / LINK) == "AtomicDirectory_checkpoint_0"


def test_a_copy_resumes_from_itself(tmp_path):
    """Fault: the absolute link of a copy led to the original, which goes its own way, or, of a moved one, nowhere."""
    original = AtomicDirectory(tmp_path / "a")
    save(original, 1)
    AtomicDirectory(tmp_path / "a")  # leaves the link absolute
    shutil.copytree(tmp_path / "a", tmp_path / "b", symlinks=True)
    save(original, 2)
    (tmp_path / "a" / "AtomicDirectory_checkpoint_0" / "model.pt").write_bytes(b"damaged")
    assert resume(tmp_path / "b")[1] == 1
    assert os.readlink(tmp_path / "b" / LINK) == str(tmp_path / "b" / "AtomicDirectory_checkpoint_0")


def story(base):
    """Three checkpoints, of which one stays; yields how many were acknowledged, after each step."""
    saver = AtomicDirectory(base / "run" / "out", keep_last=1)
    for number in (1, 2, 3):
        directory = saver.prepare_checkpoint_directory(force_save=number == 2)
        fill(directory, number)
        yield number - 1
        saver.symlink_latest(directory)
        yield number
    AtomicDirectory(base / "run" / "out")
    yield number


def test_power_lost_at_any_change_leaves_the_link_on_a_whole_checkpoint():
    """Names and data that were not synced are gone, in any order. What `symlink_latest` acknowledged is there, and
    goes on.
    """
    with scratched("compat-directory") as base:
        memory, pictures, seen, done = Memory(base), [], set(), [0]

        def change(call, perform):
            look()
            return memory(call, perform)

        def look():
            for _, picture in memory.states():
                mark = (picture.mark(), done[-1])
                if mark not in seen:
                    seen.add(mark)
                    pictures.append((picture, done[-1]))

        with door(change):
            for acknowledged in story(base):
                done.append(acknowledged)
                look()
        memory.close()
        for place, (picture, acknowledged) in enumerate(pictures):
            goes_on(picture, base / str(place), acknowledged)
        assert len(pictures) > 50


def goes_on(picture, place, acknowledged):
    for _ in picture.build(place):
        pass
    root = place / "run" / "out"
    latest = root / LINK
    found = number_in(latest) if os.path.lexists(latest) and "run/out" not in os.readlink(latest) else None
    saver, resumed = resume(root, keep_last=1) if root.parent.exists() else (None, None)
    assert found in {None, resumed}
    for older in root.glob("AtomicDirectory_checkpoint_*") if resumed else []:
        if older.name <= os.path.basename(os.readlink(latest)):
            assert number_in(older) <= resumed  # never the half of one that is being removed
    assert acknowledged <= (resumed or 0) <= acknowledged + 1
    if saver:
        save(saver, 7)
        assert resume(root)[1] == 7
        assert len(there(root)) <= 3  # the link, the latest, the forced one


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_refused_change_leaves_the_latest_as_it_was_or_new(code):
    """Each change refused in turn: the error is told, the link is on a whole checkpoint, and the next save succeeds."""
    with scratched("compat-refused") as base:
        refused = 0
        for nth in range(100):
            root = base / str(nth)
            save(AtomicDirectory(root, keep_last=1), 1)
            saver = AtomicDirectory(root, keep_last=1)
            error = None
            try:
                with door(failing(nth, code)):
                    save(saver, 2)
            except OSError as raised:
                error = raised
            if error is None:
                break
            refused += 1
            assert code == error.errno
            assert number_in(root / LINK) in {1, 2}
            assert resume(root)[1] in {1, 2}
            save(AtomicDirectory(root, keep_last=1), 3)
            assert resume(root)[1] == 3
        assert refused > 15
        assert number_in(root / LINK) == 2


# What else could go wrong ----------------------------------------------------------------------------------------


def follow(root):
    target = shutil.copytree(root / LINK, root / "copy")
    (root / LINK).unlink()
    os.rename(target, root / LINK)


LOST = {  # what a copy or a user did -> the error, and how
    "copy that left links out": (StoreError, lambda root: (root / LINK).unlink()),
    "copy that followed links": (StoreError, follow),
    "names AtomicDirectory_checkpoint_1": (NotFound, lambda root: shutil.rmtree(root / "AtomicDirectory_checkpoint_1")),
}


@pytest.mark.parametrize("how", LOST)
def test_a_lost_link_is_refused_instead_of_beginning_anew(tmp_path, how):
    """Never from scratch without a word: the original deleted every checkpoint at the next save."""
    kind, lose = LOST[how]
    saver = AtomicDirectory(tmp_path)
    save(saver, 1)
    save(saver, 2)
    lose(tmp_path)
    before = there(tmp_path)
    for again in (lambda: AtomicDirectory(tmp_path), saver.prepare_checkpoint_directory):
        with pytest.raises(kind, match=how) as refused:
            again()
        assert "here are: AtomicDirectory_checkpoint_0" in str(refused.value)
        assert ("ln -s NAME" in str(refused.value)) == (kind is StoreError)
    assert before == there(tmp_path)


def test_a_directory_may_be_opened_while_another_process_saves(tmp_path, monkeypatch):
    """An evaluation reads the latest; a newer one is there before its constructor returns."""
    training, begin = AtomicDirectory(tmp_path), AtomicDirectory._open_link
    save(training, 1)
    monkeypatch.setattr(AtomicDirectory, "_open_link", lambda opened: (begin(opened), save(training, 2))[0])
    AtomicDirectory(tmp_path)
    monkeypatch.undo()
    assert resume(tmp_path)[1] == 2


def test_what_cannot_be_synced_is_told(tmp_path, monkeypatch):
    """A file below a folder that may be listed and not entered; on Python 3.14 `Path.is_file` hides every error."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "folder").chmod(0o444)
    monkeypatch.chdir(tmp_path)
    for name in ("isdir", "isfile", "islink"):
        monkeypatch.setattr(Path, name.replace("is", "is_").replace("link", "symlink"), getattr(os.path, name))

    def law():
        if os.getuid() == 0:
            os.setuid(65534)
        with pytest.raises(PermissionError):
            sync_tree(Path("folder"))

    assert in_a_child(law) == 0
    (tmp_path / "folder").chmod(0o755)


def test_a_directory_of_the_originals_goes_on(tmp_path):
    """The same names, an absolute link, a checkpoint begun; and a temporary link, over which each later save
    stumbled.
    """
    for number in (0, 1):
        directory = tmp_path / f"AtomicDirectory_checkpoint_{number}{'_force' * number}"
        directory.mkdir()
        fill(directory, number + 10)
    (tmp_path / "AtomicDirectory_checkpoint_2").mkdir()
    os.symlink("/gone/out/AtomicDirectory_checkpoint_1_force", tmp_path / LINK)
    os.symlink(tmp_path / "AtomicDirectory_checkpoint_2", tmp_path / f"{LINK}_temp")
    saver, found = resume(tmp_path)
    assert found == 11
    assert os.path.basename(save(saver, 12)) == "AtomicDirectory_checkpoint_2"
    assert f"{LINK}_temp" not in there(tmp_path)
    assert resume(tmp_path)[1] == 12


def test_a_directory_that_cannot_be_written_is_read_all_the_same(tmp_path, capsys):
    """The link stays a bare name, and that is told: `os.readlink` alone is not enough then."""
    save(AtomicDirectory(tmp_path), 1)

    def read_only(call, perform):
        if call.name != "fsync":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return perform()

    with door(read_only):
        saver = AtomicDirectory(tmp_path)
    assert "os.path.realpath" in capsys.readouterr().err
    assert number_in(os.path.realpath(tmp_path / saver.symlink_name)) == 1


def test_opening_twice_changes_nothing_more(tmp_path):
    """A link that is right is left alone."""
    save(AtomicDirectory(tmp_path), 1)
    AtomicDirectory(tmp_path)
    calls = []
    with door(counting(calls)):
        AtomicDirectory(tmp_path)
    assert {"fsync"} >= {call.name for call in calls}


def test_a_removal_that_was_cut_short_is_finished(tmp_path):
    """Under another name: nobody takes the half of a checkpoint for one."""
    saver = AtomicDirectory(tmp_path)
    save(saver, 1)
    half = tmp_path / ".deleting-AtomicDirectory_checkpoint_0"
    half.mkdir()
    (half / "model.pt").write_bytes(b"half")
    (tmp_path / ".deleting-mine").mkdir()
    save(saver, 2)
    assert [".deleting-mine", LINK, "AtomicDirectory_checkpoint_0", "AtomicDirectory_checkpoint_1"] == there(tmp_path)
