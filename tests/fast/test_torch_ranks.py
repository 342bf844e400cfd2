"""Ranks over torch's rendezvous stores, and which processes are ranks of one run at all."""

import os

import pytest
from torch import distributed

from holdfast import Run, settings
from holdfast.errors import RanksError, UsageError
from holdfast.ranks import ALONE
from holdfast.run import ranks as room
from holdfast.torch.ranks import StoreChannel
from subjects import asked_of
from toy import Toy, waited_for

STORES = {
    "hash": lambda place: distributed.HashStore(),
    "file": lambda place: distributed.FileStore(str(place / "store"), 1),
    "tcp": lambda place: distributed.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False),
}


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return STORES[request.param](tmp_path)


def test_what_is_put_is_there_for_all_until_it_is_dropped(store):
    """Any bytes, over each connection; what is not there is not waited for. A server hears its connections in any
    order.
    """
    mine, other = StoreChannel(store, "run"), StoreChannel(store, "run").reconnect()
    for value in (b"", b"\0\xff", os.urandom(100_000)):
        mine.put("key", value)
        assert value == mine.get("key")
        soon(lambda: other.get("key"), value)
    other.drop("key")
    assert other.get("key") is None
    soon(lambda: mine.get("key"), None)


def soon(ask, expected):
    waited_for(lambda: ask() == expected)


def test_runs_have_keys_of_their_own(store):
    """Of two runs in one process neither hears the other."""
    StoreChannel(store, "holdfast/1").put("key", b"x")
    assert StoreChannel(store, "holdfast/2").get("key") is None


def test_a_forked_child_does_not_speak(store):
    """A loader's worker that did would answer in its parent's name."""
    channel = StoreChannel(store, "run")
    child = os.fork()
    if not child:
        try:
            channel.put("key", b"x")
        except UsageError:
            os._exit(7)
        os._exit(0)
    assert 7 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert channel.get("key") is None


def test_a_rendezvous_that_has_died_is_an_error():
    """Not a wait, and none of torch's own."""
    server = distributed.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    channel = StoreChannel(distributed.TCPStore("127.0.0.1", server.port, 1, is_master=False), "run")
    channel.put("key", b"x")
    del server
    with pytest.raises(RanksError, match="rendezvous does not answer"):
        for _ in range(100):
            channel.get("key")


# Who is in a run ---------------------------------------------------------------------------------------------------


@pytest.fixture
def group():
    """A process group of this process alone."""
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_without_a_group_a_process_is_alone():
    """And nothing is asked of anybody."""
    assert room.current_ranks() is ALONE


def test_a_group_of_one_is_alone(group, monkeypatch):
    """Whatever the launcher has started besides: these are runs of their own."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert room.current_ranks() is ALONE


def test_one_of_several_without_a_group_is_told_what_is_missing(tmp_path, monkeypatch):
    """Before anything is written: they would claim the run one after the other."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match=r"WORLD_SIZE is 4.*init_process_group"), Run(tmp_path / "run", {"toy": Toy()}):
        pass
    assert not (tmp_path / "run").exists()


def test_the_deadline_comes_from_the_environment(monkeypatch):
    """HOLDFAST_RANKS_TIMEOUT_S, in seconds. Without any, a rank that is missing would be waited for for ever."""
    monkeypatch.delenv("HOLDFAST_RANKS_TIMEOUT_S", raising=False)
    assert 600.0 == settings.ranks_timeout_s()
    for text, seconds in (("5", 5.0), ("0.5", 0.5)):
        monkeypatch.setenv("HOLDFAST_RANKS_TIMEOUT_S", text)
        assert seconds == settings.ranks_timeout_s()
    for text in ("", "soon", "0", "-1", "inf", "nan"):
        monkeypatch.setenv("HOLDFAST_RANKS_TIMEOUT_S", text)
        with asked_of(repr(text)), pytest.raises(UsageError, match="HOLDFAST_RANKS_TIMEOUT_S"):
            settings.ranks_timeout_s()


def test_other_ranks_only_warn(capsys):
    """With their number: a line that rank 0 says is said once."""
    from holdfast import terminal

    try:
        terminal.set_rank(3)
        terminal.say("once")
        terminal.warn("careful")
    finally:
        terminal.set_rank(0)
    assert "holdfast: rank 3: warning: careful\n" == capsys.readouterr().err
