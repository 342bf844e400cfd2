"""Odd files in a run's directory: a pipe, a directory, noise. Nothing waits for them, and they cost what they stand
for only."""

import json
import os
import re
import signal
import stat

import msgspec
import pytest

from holdfast import disk, journal
from holdfast.errors import Damaged, StoreError, Superseded, UsageError
from holdfast.store.attempt import read_run
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.store import Store
from stores import invoke
from toy import Toy, new_run

ODD = {
    "pipe": os.mkfifo,
    "directory": os.mkdir,
    "link": lambda path: os.symlink("elsewhere", path),
    "device": lambda path: os.symlink("/dev/zero", path),
}
PATIENCE_S = 20


@pytest.fixture(autouse=True)
def _waits_for_nothing():
    """What waits for a pipe waits for ever: here it fails instead."""

    def give_up(number, frame):
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def root(tmp_path):
    store = Store(tmp_path / "run")
    for step in (1, 2):
        store.save({"step": step}, step=step)
    store.close()
    return store.root


def train(root, epochs=1):
    """One attempt more; where it began."""
    toy = Toy()
    with new_run(root, toy) as run:
        for _ in run.epochs(epochs):
            for batch in run.batches(range(2)):
                toy.learn(batch)
                run.log(loss=batch)
    return [event for log in journal.logs(root) for event in log.events if event["event"] == "restored"][-1]


def put(odd, path):
    """`odd` in the place of what is at `path`."""
    disk.remove_tree(path)
    ODD[odd](path)


# The door --------------------------------------------------------------------------------------------------------


def test_only_plain_files_open(tmp_path):
    """Everything else is told apart, and not waited for."""
    for odd, make in {**ODD, "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600)}.items():
        make(tmp_path / odd)
        for read in (disk.open_plain, disk.sync_file, disk.drop_cached):
            with pytest.raises(disk.NotPlain):
                read(tmp_path / odd)


def test_a_plain_file_opens_and_blocks_as_ever(tmp_path):
    """Also by way of a link, where that is asked for."""
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    for descriptor in (disk.open_plain(tmp_path / "file"), disk.open_plain(tmp_path / "link", follow=True)):
        assert os.get_blocking(descriptor)
        assert b"text" == os.read(descriptor, 9)
        os.close(descriptor)


# Checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", ["pipe", "directory", "device"])
def test_an_odd_manifest_is_damage_and_the_older_one_is_loaded(odd, root):
    """Its path is told; `verify` exits with 4 and `ls` shows the others."""
    manifest = root / "checkpoints/step-000000002/manifest.json"
    put(odd, manifest)
    with pytest.raises(Damaged, match=str(manifest)):
        Checkpoint(manifest.parent).load()
    assert {"step": 1} == Store(root).load()
    told = invoke("verify", root)
    assert (4, True) == (told.exit_code, str(manifest) in told.stdout), told
    for extra in ([], ["--cold"]):
        assert 4 == invoke("verify", root, "--step", 2, *extra).exit_code
    assert "step-000000001" in invoke("ls", root).stdout


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_file_of_a_checkpoint_is_damage(odd, tmp_path):
    """Also where its size is the same as that of what was committed."""
    store = Store(tmp_path / "run")
    with store.directory(step=1) as path:
        (path / "empty").touch()
    put(odd, store[1].path / "empty")
    assert ["empty"] == [problem.path.name for problem in store[1].problems()]
    with pytest.raises(Damaged, match="empty"):
        store.load()


def test_a_run_goes_on_from_the_checkpoint_before_an_odd_one(tmp_path):
    """The odd one is moved to quarantine."""
    for odd in ("pipe", "directory"):
        root = tmp_path / odd
        train(root)
        *_, older, newest = Store(root).checkpoints()
        put(odd, newest.path / "manifest.json")
        assert older.path.name == train(root, epochs=2)["checkpoint"]
        assert 1 == len(list((root / "quarantine").iterdir()))


@pytest.mark.parametrize("odd", ["pipe", "link", "device"])
def test_a_directory_with_an_odd_file_is_refused(odd, root):
    """By its name, and nothing was saved."""
    store = Store(root)
    with pytest.raises(UsageError, match=r"sub/odd.*plain files"), store.directory(step=3) as path:
        (path / "sub").mkdir()
        ODD[odd](path / "sub" / "odd")
    assert [1, 2] == [c.step for c in store.checkpoints()]
    assert not (store.attempt.room / "step-000000003").exists()


def test_verify_goes_on_after_what_it_may_not_read(root, monkeypatch):
    """That is no damage; the other checkpoints are told all the same."""
    real = disk.open_plain

    def denied(path, **named):
        if "step-000000001" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **named)

    monkeypatch.setattr(disk, "open_plain", denied)
    told = invoke("verify", root)
    assert 12 == told.exit_code
    assert "manifest.json: cannot be read: Permission denied" in told.stdout
    assert "step-000000002  ok" in told.stdout


# Journals ----------------------------------------------------------------------------------------------------------

MISFITS = [
    b'{"event":"saved","step":1,"stall_s":"abc"}',
    b'{"event":"saved","step":1,"stall_s":-1}',
    b'{"event":"metrics","step":3}',
    b'{"event":"metrics","values":{"loss":1}}',
    b'{"event":"metrics","step":3,"values":[]}',
    b'{"event":"metrics","step":3,"values":{"loss":"high"}}',
    b'{"event":"metrics","step":3,"values":{"loss":null}}',
    b'{"event":"metrics","step":-3,"values":{"loss":1}}',
    b'{"event":"metrics","step":true,"values":{"loss":1}}',
    b'{"event":"metrics","step":3,"values":{"loss":' + b"9" * 400 + b"}}",
    b'{"event":"restored","step":3,"phase":"sometime"}',
    b'{"event":"restored","step":3.5}',
    b'{"event":"told","time":"noon"}',
    b'{"event":"digests","step":3,"time":1,"leaves":[]}',
    b'{"event":7}',
    b'["event"]',
    b"7",
    b"[" * 200_000,
    b"\xff\xfe",
]


def test_a_line_that_does_not_fit_is_passed_over(tmp_path):
    """It hides nothing: the lines around it are read."""
    whole = [
        {
            "event": "metrics",
            "time": 1.0,
            "step": 3,
            "phase": "exit",
            "values": {"a": 1, "b": 0.5, "c": "nan", "d": "-inf"},
        },
        {"event": "a later version's", "time": 2.0, "what": [None]},
    ]
    path = tmp_path / "attempt-1.jsonl"
    for line in MISFITS:
        path.write_bytes(b"\n".join([msgspec.json.encode(whole[0]), line, msgspec.json.encode(whole[1])]))
        assert whole == journal.read(path), line


def test_what_a_run_writes_fits(tmp_path):
    """No line of Holdfast's own is lost to the check."""
    train(tmp_path)
    train(tmp_path, epochs=2)
    text = b"\n".join(log.path.read_bytes() for log in journal.logs(tmp_path))
    written = [json.loads(line) for line in text.split(b"\n") if line]
    assert written == [event for log in journal.logs(tmp_path) for event in log.events]
    assert {"begin", "restored", "metrics", "saved"} <= {event["event"] for event in written}


def test_odd_lines_do_not_keep_a_run_from_going_on(tmp_path):
    """Its metrics are what they were."""
    train(tmp_path)
    before = journal.metrics(tmp_path)
    with open(journal.logs(tmp_path)[-1].path, "ab") as file:
        file.write(b"\n".join([b"", *MISFITS, b""]))
    assert before == journal.metrics(tmp_path)
    assert 2 == train(tmp_path, epochs=2)["step"]
    for words in (["show", "--metrics"], ["ls"]):
        assert 0 == invoke(words[0], tmp_path, *words[1:]).exit_code


@pytest.mark.parametrize("odd", ["pipe", "directory", "device"])
@pytest.mark.parametrize("place", ["history/attempt-7.jsonl", "history/attempt-1.jsonl"])
def test_what_is_no_journal_in_the_history_is_passed_over(odd, place, root):
    """Nor does it hide the journal of an attempt that is still in its room."""
    put(odd, root / place)
    assert [1] == [log.attempt for log in journal.logs(root) if log.events]
    store = Store(root)
    store.save({"step": 3}, step=3)
    store.close()
    assert 0 == invoke("ls", root).exit_code


@pytest.mark.parametrize("odd", ["pipe", "directory"])
def test_an_odd_journal_of_the_last_attempt_says_nothing_of_its_owner(odd, root):
    """So that the next one has to be told that it is gone."""
    put(odd, root / "attempts/1/attempt-1.jsonl")
    with pytest.raises(UsageError, match="attempt 1 may still be running"):
        Store(root).claim()
    store = Store(root, take_over=True)
    store.save({"step": 3}, step=3)
    store.close()
    assert not (root / "attempts/1").exists()
    assert 0 == invoke("ls", root).exit_code


def test_an_attempt_whose_journal_a_purge_took_is_over(root):
    """The next start asks nobody whether it still runs; if it does, it can save nothing more."""
    late = Store(root)
    late.save({"step": 3}, step=3)
    late.attempt.journal.unlink()
    store = Store(root)
    store.save({"step": 4}, step=4)
    with pytest.raises(Superseded):
        late.save({"step": 5}, step=5)
    store.close()
    assert [1, 2, 3, 4] == [checkpoint.step for checkpoint in Store(root).checkpoints()]


def test_a_file_among_the_rooms_is_none(root):
    """Its number is passed over: it is neither waited for nor taken, also when it is the next."""
    for number in (2, 5):
        (root / "attempts" / str(number)).write_bytes(b"")
    store = Store(root)
    store.save({"step": 3}, step=3)
    assert 6 == store.attempt.number
    store.close()
    assert [1, 6] == [log.attempt for log in journal.logs(root)]


@pytest.mark.parametrize("odd", ["pipe", "directory"])
def test_an_odd_journal_in_a_draft_of_a_claim_does_not_matter(odd, root):
    (root / "attempts/.claim-x").mkdir()
    ODD[odd](root / "attempts/.claim-x/attempt-2.jsonl")
    assert Store(root).claim().room.is_dir()


# run.json ------------------------------------------------------------------------------------------------------------


def test_a_run_that_a_later_holdfast_has_laid_out_is_left_alone(tmp_path):
    """No attempt begins, nothing is written, and doctor does not take it for a mess."""
    root = tmp_path / "run"
    store = Store(root)
    store.save({"n": 1}, step=1)
    store.close()
    path = root / "run.json"
    path.write_text(path.read_text().replace('"holdfast": 1', '"holdfast": 8'))
    before = sorted(root.rglob("*"))
    with pytest.raises(StoreError, match=r"run\.json: format version 8; this Holdfast reads 1, 6 and 7") as raised:
        Store(root).claim()
    assert not isinstance(raised.value, Damaged)
    assert "mess" not in invoke("doctor", root).stdout
    assert before == sorted(root.rglob("*"))


def test_a_run_whose_id_is_spoilt_says_so(root):
    """With the file and what to do; the checkpoints can be read, and the next start writes the file again from them."""
    run, texts = read_run(root), (b"[" * 200_000, bytes(range(255, 155, -1)), b"", b"{}", b'{"run": 7}', b"[]")
    for text in texts:
        (root / "run.json").write_bytes(text)
        with pytest.raises(Damaged, match=r"run\.json: not what Holdfast wrote; move it away: "):
            Store(root).claim()
        assert {"step": 2} == Store(root).load()
    told = invoke("doctor", root)
    assert 1 == told.exit_code
    assert re.search(rf"problem +mess: {root}/run.json: is not what Holdfast wrote", told.output)
    (root / "run.json").rename(root / "odd")
    Store(root).claim()
    assert run == read_run(root)


def test_a_run_keeps_its_id_when_run_json_is_gone(root):
    """The next start takes it from the newest checkpoint that can be read."""
    run = read_run(root)
    (root / "run.json").unlink()
    assert run == Store(root).claim().run == read_run(root)


@pytest.mark.parametrize("odd", ["pipe", "directory", "device"])
def test_no_run_waits_for_its_id(odd, root):
    put(odd, root / "run.json")
    with pytest.raises(Damaged, match=r"run\.json"):
        Store(root).claim()
    assert 0 == invoke("ls", root).exit_code
