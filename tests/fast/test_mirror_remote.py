"""What an attempt does at a place: its claim, its copies, and what it may never touch."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import disk_faults
from faults import door
from holdfast.errors import Damaged, NotFound, UsageError
from holdfast.mirror import copying
from holdfast.mirror.backends import open_place
from holdfast.mirror.copying import COPIED, THERE
from holdfast.mirror.place import NotKept, Silent, redact_error, redact_url
from holdfast.mirror.records import Foreign, Later, ResumeOrigin, Taken, copy_folder
from holdfast.mirror.remote import RemoteRun
from holdfast.mirror.retrying import RetryingPlace
from holdfast.store.store import Store
from stores import flip, having, listing, put

GOLDEN = Path(__file__).parents[1] / "golden"
RUN = '{"run": "r"}'
ME, OTHER = {"pid": 1}, {"pid": 2}


class Faulty:
    """A place, of which a test makes single calls fail or wait."""

    def __init__(self, place, before=None):
        self.place, self.before, self.calls = place, before or {}, []

    def __getattr__(self, name):
        found = getattr(self.place, name)
        if not callable(found):
            return found

        def call(path, *args, **options):
            self.calls.append((name, path))
            self.before.get(name, lambda *_: None)(path)
            return found(path, *args, **options)

        return call


def remote_at(tmp_path, **before):
    return RemoteRun(Faulty(open_place(str(tmp_path / "mirror")), before))


def claimed(tmp_path, attempt=1, **before):
    remote = remote_at(tmp_path, **before)
    remote.claim(attempt, RUN, ME, 1.0)
    return remote


def sent_files(remote):
    return [path.rpartition("/")[2] for name, path in remote.place.calls if name == "put"]


def names_of(remote):
    return [(each.attempt, each.name) for each in remote.read_state().copies]


def test_a_place_is_claimed_once(tmp_path):
    """The same claim again is the same; another owner's is refused, and so is another run's place."""
    claimed(tmp_path).claim(1, RUN, ME, 1.0)
    for owner, entered in [(OTHER, 1.0), (ME, 2.0)]:
        with pytest.raises(Taken):
            remote_at(tmp_path).claim(1, RUN, owner, entered)
    with pytest.raises(Foreign):
        remote_at(tmp_path).claim(2, '{"run": "another"}', ME, 1.0)
    remote_at(tmp_path).claim(2, RUN, OTHER, 1.0)
    with pytest.raises(Later):
        remote_at(tmp_path).claim(1, RUN, ME, 1.0)
    seen = remote_at(tmp_path).read_state()
    assert [(each.attempt, each.owner, each.ended) for each in seen.claims] == [(1, ME, False), (2, OTHER, False)]
    assert (seen.run, seen.run_json) == ("r", RUN)


def test_a_claim_is_recognised_whose_answer_was_lost(tmp_path):
    """The place wrote it, and said nothing."""

    def lost(path):
        if "claims" in path and not (tmp_path / "mirror" / path).exists():
            open_place(str(tmp_path / "mirror")).create(path, found[0])
            raise Silent("timed out")

    first = claimed(tmp_path)
    found = [(tmp_path / "mirror/claims/000001.json").read_bytes().replace(b'"attempt":1', b'"attempt":2')]
    first.place.before["create"] = lost
    with pytest.raises(Silent):
        first.claim(2, RUN, ME, 1.0)
    first.claim(2, RUN, ME, 1.0)


def test_what_an_attempt_went_on_from_is_noted_once(tmp_path):
    remote = claimed(tmp_path)
    origin = ResumeOrigin(None)
    remote.note_origin(1, origin)
    remote.note_origin(1, origin)
    with pytest.raises(Foreign):
        remote.note_origin(1, ResumeOrigin(1, "step-000000001"))
    remote.note_end(1)
    remote.note_end(1)
    assert [(each.origin, each.ended) for each in remote_at(tmp_path).read_state().claims] == [(origin, True)]


def test_a_copy_is_the_checkpoint_itself_and_comes_back(tmp_path):
    """Of one process and several, of any files: the folder there is the checkpoint, and so is what is fetched."""
    with Store(tmp_path / "files").directory(step=3) as path:
        (path / "a/b").mkdir(parents=True)
        (path / "a/b/c").write_bytes(b"x" * 1000)
        (path / "empty").touch()
    kinds = [(GOLDEN / kind).glob("step-*").__next__() for kind in ("one-process", "two-ranks", "divided")]
    for attempt, path in enumerate([*kinds, tmp_path / "files/checkpoints/step-000000003"], 1):
        remote = claimed(tmp_path, attempt)
        done = remote.copy(attempt, path)
        assert done.sent_bytes + done.copied_bytes == done.size_bytes > 0
        assert "read back" in done.how
        assert listing(path) == listing(tmp_path / "mirror" / copy_folder(attempt, path.name))
        into = tmp_path / f"back-{attempt}"
        into.mkdir()
        assert remote.fetch(attempt, path.name, into) == done.size_bytes
        assert listing(path) == listing(into)
        assert remote.copy(attempt, path).how == THERE
    assert [each.attempt for each in remote.read_state().copies] == [1, 2, 3, 4]


def test_the_facts_of_a_copy_are_those_of_the_checkpoint(tmp_path):
    store, remote = having(tmp_path / "run", 1, 2), claimed(tmp_path)
    for each in store.checkpoints():
        remote.copy(1, each.path)
    assert [each.facts() for each in remote.read_state().copies] == [each.facts() for each in store.checkpoints()]


def test_a_copy_goes_on_where_it_was_cut(tmp_path):
    """Also by another process: what is whole there is not sent again, what is not whole is."""
    path = (GOLDEN / "two-ranks").glob("step-*").__next__()
    count = [0]

    def third(_):
        count[0] += 1
        if count[0] == 3:
            raise Silent("503")

    remote = claimed(tmp_path, put=third)
    with pytest.raises(Silent):
        remote.copy(1, path)
    assert names_of(remote) == []
    assert [(each.attempt, each.name) for each in remote.read_state().rests] == [(1, path.name)]
    before = sent_files(remote)
    assert len(before) == 3
    flip(tmp_path / "mirror" / copy_folder(1, path.name) / before[0])  # as a write that was torn
    other = remote_at(tmp_path)
    done = other.copy(1, path)
    assert before[1] not in sent_files(other)
    assert {before[0], before[2]} <= {*sent_files(other)}
    assert done.sent_bytes < done.size_bytes
    remote.copy(1, path)
    assert listing(path) == listing(tmp_path / "mirror" / copy_folder(1, path.name))


def test_what_did_not_change_is_copied_within_the_place(tmp_path):
    """From any attempt's copy, and by a process that has not made it; but only while what lies there is sound."""
    store = having(tmp_path / "run", 1, 2)
    first, second = [each.path for each in store.checkpoints()]
    claimed(tmp_path).copy(1, first)
    twin = shutil.copytree(first, tmp_path / "twin" / first.name)
    remote = claimed(tmp_path, 2)
    done = remote.copy(2, twin)
    assert (done.sent_bytes, done.copied_bytes, done.how) == (0, done.size_bytes, COPIED)
    assert remote.copy(2, second).sent_bytes > 0
    victim = max((tmp_path / "mirror" / copy_folder(2, second.name)).iterdir(), key=lambda each: each.stat().st_size)
    flip(victim)
    third = claimed(tmp_path, 3)
    done = third.copy(3, second)
    assert (sent_files(third), done.copied_bytes > 0) == ([victim.name], True)
    assert listing(second) == listing(tmp_path / "mirror" / copy_folder(3, second.name))


def test_a_place_that_cannot_copy_is_sent_everything(tmp_path):
    path = having(tmp_path / "run", 1).latest().path
    claimed(tmp_path).copy(1, path)
    remote = claimed(tmp_path, 2)
    remote.place.copy = lambda *_: False
    done = remote.copy(2, path)
    assert (done.sent_bytes, done.copied_bytes) == (done.size_bytes, 0)


def test_a_small_file_that_a_place_does_not_copy_does_not_stop_large_ones(tmp_path):
    """S3 copies no small files: they are sent, and the large one that did not change is still copied there."""
    path = having(tmp_path / "run", 1).latest().path
    claimed(tmp_path).copy(1, path)
    sizes = sorted(each.stat().st_size for each in path.iterdir() if each.name != "manifest.json")
    remote = claimed(tmp_path, 2)
    really = remote.place.place.copy

    def copy(source, target):
        return (tmp_path / "mirror" / source).stat().st_size > sizes[0] and really(source, target)

    remote.place.copy = copy
    for attempt in (2, 3):
        claimed(tmp_path, attempt)
        done = remote.copy(attempt, path)
        assert (done.sent_bytes, done.copied_bytes) == (sizes[0], sum(sizes[1:]))


def test_a_manifest_is_read_back_before_it_has_its_name(tmp_path, monkeypatch):
    """A disk that keeps another byte than it was given: nobody sees a damaged manifest, and the next try is right."""
    monkeypatch.setattr(copying, "MOST_SENT_AGAIN", 0)
    path, remote, turned = having(tmp_path / "run", 1).latest().path, claimed(tmp_path), []

    def act(call, perform):
        if call.name == "write" and ".manifest.json." in os.readlink(f"/proc/self/fd/{call.descriptor}") and not turned:
            turned.append(call)
            return disk_faults.turned(call, perform)
        return perform()

    with door(act), pytest.raises(NotKept):
        remote.copy(1, path)
    assert not list((tmp_path / "mirror").rglob("*manifest.json*"))
    remote.copy(1, path)
    assert (len(turned), listing(path)) == (1, listing(tmp_path / "mirror" / copy_folder(1, path.name)))


def test_the_loser_that_paused_between_look_and_manifest_harms_nobody(tmp_path):
    """Its manifest lies in a folder of its own; and it writes and deletes nothing more after its next look."""
    store = having(tmp_path / "run", 1, 2)
    first, second = [each.path for each in store.checkpoints()]
    winner = remote_at(tmp_path)

    def pause(path):
        if path.endswith("manifest.json") and "000000002" in path:
            winner.claim(2, RUN, OTHER, 2.0)
            winner.note_origin(2, ResumeOrigin(1, first.name))
            winner.copy(2, second)

    loser = claimed(tmp_path, create=pause)
    loser.copy(1, first)
    loser.copy(1, second)
    assert names_of(winner) == [(1, first.name), (1, second.name), (2, second.name)]
    put(store, 3)
    for act in (
        lambda: loser.copy(1, store.latest().path),
        lambda: loser.remove(1, 1, first.name),
        lambda: loser.note_origin(1, ResumeOrigin(None)),
        lambda: loser.claim(1, RUN, ME, 1.0),
    ):
        with pytest.raises(Later):
            act()
    assert names_of(winner) == [(1, first.name), (1, second.name), (2, second.name)]
    assert listing(second) == listing(tmp_path / "mirror" / copy_folder(2, second.name))


def test_a_claim_that_comes_while_files_are_sent_stops_the_manifest(tmp_path):
    path = having(tmp_path / "run", 1).latest().path
    winner = remote_at(tmp_path)
    loser = claimed(tmp_path, put=lambda _: winner.claim(2, RUN, OTHER, 2.0))
    with pytest.raises(Later):
        loser.copy(1, path)
    assert names_of(winner) == []


def test_another_manifest_under_the_same_name_is_an_error(tmp_path):
    """Never "already there". A damaged one of ours is written again."""
    mine, theirs = [having(tmp_path / name, 1).latest().path for name in ("a", "b")]
    remote = claimed(tmp_path)
    remote.copy(1, mine)
    with pytest.raises(Foreign):
        remote.copy(1, theirs)
    flip(tmp_path / "mirror" / copy_folder(1, mine.name) / "manifest.json")
    assert [each.attempt for each in remote.read_state().rests] == [1]
    remote.copy(1, mine)
    assert listing(mine) == listing(tmp_path / "mirror" / copy_folder(1, mine.name))


def test_a_place_that_was_emptied_is_not_written_to(tmp_path):
    """A disk that is not mounted any more looks like that."""
    path = having(tmp_path / "run", 1).latest().path
    remote = claimed(tmp_path)
    shutil.rmtree(tmp_path / "mirror")
    with pytest.raises(Foreign, match="gone"):
        remote.copy(1, path)
    assert listing(tmp_path / "mirror") == {}


@pytest.mark.parametrize("harm", ["flipped", "short", "missing", "manifest"])
def test_a_damaged_copy_is_not_fetched(tmp_path, harm):
    path = having(tmp_path / "run", 1).latest().path
    remote = claimed(tmp_path)
    remote.copy(1, path)
    there = tmp_path / "mirror" / copy_folder(1, path.name)
    victim = (
        max(there.iterdir(), key=lambda each: each.stat().st_size) if harm != "manifest" else there / "manifest.json"
    )
    if harm == "short":
        os.truncate(victim, 10)
    elif harm == "missing":
        victim.unlink()
    else:
        flip(victim)
    into = tmp_path / "back"
    into.mkdir()
    with pytest.raises(Damaged):
        remote.fetch(1, path.name, into)
    assert not {victim.name, "manifest.json"} & {each.name for each in into.iterdir()}
    shutil.rmtree(there)
    with pytest.raises(NotFound):
        remote.fetch(1, path.name, into)


def test_a_fetch_goes_on_where_it_was_cut(tmp_path):
    """The file is read again, and what has come before is not written twice."""
    path = having(tmp_path / "run", 1).latest().path
    claimed(tmp_path).copy(1, path)
    cuts, told = [3, 1, 0], []
    place: Any = Faulty(open_place(str(tmp_path / "mirror")))

    def cut(at):
        for piece in place.place.get(at):
            for start in range(0, len(piece), 100):
                if cuts and start == 100 * cuts[0]:
                    raise Silent(f"reset {cuts.pop(0)}")
                yield piece[start : start + 100]

    place.get = cut
    (tmp_path / "back").mkdir()
    RemoteRun(RetryingPlace(place, told.append, pause=lambda _: None)).fetch(1, path.name, tmp_path / "back")
    assert (3, listing(path)) == (len(told), listing(tmp_path / "back"))


def test_one_file_is_fetched_to_heal(tmp_path):
    path = (GOLDEN / "two-ranks").glob("step-*").__next__()
    remote = claimed(tmp_path)
    remote.copy(1, path)
    for name in [each.name for each in path.glob("*.safetensors")]:
        remote.fetch_file(1, path.name, name, tmp_path / name)
        assert (tmp_path / name).read_bytes() == (path / name).read_bytes()
    with pytest.raises(NotFound):
        remote.fetch_file(1, path.name, "no-such-file", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_local_checkpoint_that_is_pruned_or_damaged_is_told_apart(tmp_path):
    store = having(tmp_path / "run", 1, 2)
    first, second = [each.path for each in store.checkpoints()]
    remote = claimed(tmp_path)
    flip(max(first.iterdir(), key=lambda each: each.stat().st_size))
    with pytest.raises(Damaged) as caught:
        remote.copy(1, first)
    assert not isinstance(caught.value, NotKept)
    remote.place.before["put"] = lambda _: shutil.rmtree(second, ignore_errors=True)
    with pytest.raises(NotFound):
        remote.copy(1, second)
    assert names_of(remote) == []


def test_a_removed_copy_is_gone_and_nothing_is_copied_from_it(tmp_path):
    path = having(tmp_path / "run", 1).latest().path
    remote = claimed(tmp_path)
    remote.copy(1, path)
    remote.remove(1, 1, path.name)
    remote.remove(1, 1, path.name)
    assert names_of(remote) == []
    done = remote.copy(1, path)
    assert done.sent_bytes == done.size_bytes


@pytest.mark.parametrize("sign", "/?#")
def test_a_password_with_an_unquoted_sign_is_refused_and_not_shown(sign):
    """The host seems to end in the middle of it."""
    url = f"sftp://user:first{sign}second@host/place"
    assert "sftp://***@host/place" == redact_url(url)
    with pytest.raises(UsageError, match="%2F") as refused:
        open_place(url)
    for text in (str(refused.value), redact_error(f"port 'first' of {url}: second", url)):
        assert "first" not in text
        assert "second" not in text
    assert "sftp://host:22/place" == redact_url("sftp://host:22/place")
    assert "s3://bucket/a@b" == redact_url("s3://bucket/a@b")
