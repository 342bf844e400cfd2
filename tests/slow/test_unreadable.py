"""A restore that cannot read a file: it waits, looks at the places, and stops; what is saved stays as it is."""

import os
import re
import signal
from itertools import cycle

import pytest

from mirrored import names_at
from needed import needs
from toy import Ended, events, waited_for
from unread import bad_sector, begin, content, ended, failing, on, rank_training, ranks_ended, training, value

pytestmark = needs("strace", "unshare", root=True)

CODES = ("EIO", "ESTALE", "EACCES", "ETIMEDOUT", "ENOMEM")
FILES = ("manifest.json", "holdfast.safetensors")
SHORT_S = 1


@pytest.fixture
def saved(tmp_path):
    """A run of three steps, each with a checkpoint: its directory and the script."""
    path = training(tmp_path)
    assert ended([], path, 3, SHORT_S).code == 0
    return tmp_path / "run", path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The value after step 5 when nothing happens."""
    path = training(tmp_path_factory.mktemp("undisturbed"))
    ended([], path, 3, SHORT_S)
    return value(ended([], path, 5, SHORT_S).out)


@pytest.mark.parametrize(("code", "file"), [*zip(CODES, cycle(FILES), strict=False)])
def test_a_file_that_can_be_read_again_in_time_costs_a_wait_and_nothing_else(saved, undisturbed, code, file):
    """One line tells for how long it tries. The run goes on from that checkpoint to the same bits."""
    run, path = saved
    newest = run / "checkpoints" / "step-000000003" / file
    found = ended(failing(newest, code, "1..1", "openat" if code == "EACCES" else "read,preadv"), path, 5, 20)
    assert found.code == 0, found
    assert undisturbed == value(found.out)
    assert 1 == len(re.findall(rf"{file}: cannot be read on .*; tries again for up to 20 s", found.err)), found
    assert not [*(run / "quarantine").iterdir()]


@pytest.mark.parametrize("file", ["run.json", "attempts/1/attempt-1.jsonl"])
def test_a_small_file_that_cannot_be_read_costs_a_moment_or_is_named(saved, undisturbed, file):
    """The run's id or an earlier attempt's journal: three reads fail, or all do. Then nothing is changed."""
    run, path = saved
    before = content(run)
    found = ended(failing(run / file), path, 5, SHORT_S)
    assert found.code == 1, found
    assert f"cannot begin: Input/output error ({run / file})" in found.err.splitlines()[-1]
    assert before == content(run)
    found = ended(failing(run / file, "EIO", "1..3", "read"), path, 5, SHORT_S)
    assert found.code == 0, found
    assert undisturbed == value(found.out)


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_stays_unreadable_ends_the_start_and_changes_nothing(saved, file):
    """No older checkpoint is taken. The message names the file, the node, the time, and how to go back; that works."""
    run, path = saved
    before, strace = content(run), failing(run / "checkpoints" / "step-000000003" / file)
    for _ in range(2):  # on one node: the second start has not more to go by
        found = ended(strace, path, 5, SHORT_S)
        assert found.code == 1, found
        assert "Unreadable" in found.err.splitlines()[-1]
        assert f"{file}: cannot be read on {os.uname().nodename}: [Errno 5]" in found.err
        assert "Nothing was changed. Start it again, on another node" in found.err
        assert "Run(..., go_back=2)" in found.err
        assert before == content(run)
    assert ["step-000000003"] * 2 == [event["checkpoint"] for event in events(run, "unreadable")]
    back = ended(strace, path, 2, SHORT_S, "-", 2)  # up to there: the file's name is the next save's, too
    assert back.code == 0, back
    assert "resumed 2" in back.out
    kept = {name.replace("checkpoints", "quarantine").replace("3/", "3-went-back/") for name in before if "03/" in name}
    assert kept <= content(run).keys()


def test_two_nodes_that_fail_at_one_file_let_the_run_go_on_from_an_older_checkpoint(saved):
    """The newest goes to the quarantine with every byte. Another file, or the same node again, is no reason."""
    run, path = saved
    newest = run / "checkpoints" / "step-000000003"
    before = {name: (newest / name).read_bytes() for name in FILES}
    shard, manifest = failing(newest / FILES[1]), failing(newest / FILES[0])
    for words in ([*on("a"), *shard], [*on("a"), *shard], [*on("b"), *manifest]):
        assert ended(words, path, 5, SHORT_S).code == 1
    found = ended([*on("c"), *shard], path, 5, SHORT_S)
    assert found.code == 0, found
    assert "resumed 2" in found.out
    assert "holdfast.safetensors cannot be read, neither on a nor on c" in found.err
    assert before == {name: (run / "quarantine" / "step-000000003-unreadable" / name).read_bytes() for name in FILES}


def test_a_node_that_could_read_the_file_in_between_makes_the_count_begin_anew(saved):
    """Then two nodes have not failed at it: one node has, twice."""
    run, path = saved
    shard = failing(run / "checkpoints" / "step-000000003" / FILES[1])
    assert ended([*on("a"), *shard], path, 5, SHORT_S).code == 1
    assert ended([*on("b")], path, 3, SHORT_S).code == 0  # finished at step 3: nothing newer is saved
    before = content(run)
    assert ended([*on("c"), *shard], path, 5, SHORT_S).code == 1
    assert before == content(run)


def test_an_older_checkpoint_that_cannot_be_read_either_takes_no_place(saved):
    """Two nodes see a disk that fails everywhere: nothing is moved."""
    run, path = saved
    shards = [failing(run / "checkpoints" / f"step-{step:09d}" / FILES[1]) for step in (3, 2)]
    both = [*shards[0][:-4], "-P", shards[1][6], *shards[0][-4:]]
    before = content(run)
    for node in ("a", "b", "a"):
        assert ended([*on(node), *both], path, 5, SHORT_S).code == 1
    assert before == content(run)


@pytest.mark.parametrize("file", FILES)
def test_a_place_gives_what_this_disk_does_not(tmp_path, monkeypatch, undisturbed, file):
    """The copy is fetched first; the unreadable one is moved to the quarantine, and the run goes on from step 3."""
    monkeypatch.setenv("PLACE", str(tmp_path / "place"))
    path, run = training(tmp_path), tmp_path / "run"
    assert ended([], path, 3, SHORT_S).code == 0
    assert "step-000000003" in names_at(tmp_path / "place")
    found = ended(bad_sector(tmp_path, run / "checkpoints" / "step-000000003" / file), path, 5, SHORT_S)
    assert found.code == 0, found
    assert "resumed 3" in found.out
    assert undisturbed == value(found.out)
    assert {*FILES} == {each.name for each in (run / "quarantine" / "step-000000003-unreadable").iterdir()}


def test_a_signal_ends_the_wait_with_75_and_changes_nothing(saved):
    """A job that is told to end while it waits may be run again."""
    run, path = saved
    before, words = content(run), failing(run / "checkpoints" / "step-000000003" / FILES[1])
    process = begin(words, path, 5, 60)
    waited_for(lambda: events(run, "told"))
    os.kill(int(next(log for log in reversed(events(run, "begin")))["owner"]["pid"]), signal.SIGTERM)
    found = Ended(process)
    assert found.code == 75, found
    assert "stopped by SIGTERM" in found.err
    assert before == content(run)
    assert "resumed 3" in ended([], path, 5, SHORT_S).out


def test_all_ranks_wait_and_stop_together_when_one_cannot_read_its_part(tmp_path):
    """One line tells; both end with the same error, and nothing is changed, or both go on from the newest."""
    path, run = rank_training(tmp_path), tmp_path / "run"
    first = ranks_ended([[], []], path, 3, SHORT_S)
    assert [0, 0] == [each.code for each in first], first
    before = content(run)
    (file,) = {
        name for name in before if "step-000000003/" in name and "00001" in name and name.endswith("safetensors")
    }
    for when, most_s, code in (("1+", SHORT_S, 1), ("1..2", 20, 0)):
        found = ranks_ended([[], failing(run / file, when=when, calls="read,preadv")], path, 5, most_s)
        assert [code, code] == [each.code for each in found], found
        assert 1 == sum(each.err.count("tries again for up to") for each in found), found
        assert f"rank 1: {run / file}: cannot be read" in found[0].err
        if code:
            assert all("Unreadable" in each.err for each in found), found
            assert before == content(run)
    assert all("resumed 3" in each.out for each in found), found
    assert not [*(run / "quarantine").iterdir()]


def test_the_wait_is_a_tenth_of_the_time_that_is_left_at_most(saved):
    """With 30 s until the deadline, it tries for 3 s."""
    run, path = saved
    found = ended(failing(run / "checkpoints" / "step-000000003" / FILES[1]), path, 5, 60, 30)
    assert found.code == 1, found
    assert "tries again for up to 3 s" in found.err
    assert "tried for 3 s" in found.err
