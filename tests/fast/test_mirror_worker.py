"""The worker and its client: nothing that happens to one of them stalls, ends or outlives the other."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import StoreError, UsageError
from holdfast.mirror.client import PlaceError, WorkerClient
from holdfast.mirror.records import PlaceState
from stores import having, listing

RUN = '{"run": "r"}'
CLAIM = {"attempt": 1, "run_json": RUN, "owner": {"pid": 1}, "entered": 1.0}
STEP = "step-000000001"

HANGS = """
import time
from holdfast.mirror import lane, worker
worker.MirrorWorker.__init__.__kwdefaults__["patience_s"] = 0.0
def look(*_):
    print("a library prints this", flush=True)
    time.sleep(60)
lane.OPS["look"] = look
from holdfast.mirror import __main__
"""

SLOW = """
import time
from holdfast.mirror import place, sending
real = sending.pieces
def pieces(*args):
    for piece in real(*args):
        time.sleep(0.05)
        yield piece
sending.pieces = pieces
from holdfast.mirror import __main__
"""


@pytest.fixture
def start(tmp_path):
    """Starts a client of the places of these names, with a worker that runs `code` instead of its own."""
    clients = []

    def begin(*names, code=None, root=tmp_path):
        python = [sys.executable]
        if code:
            (tmp_path / "worker.py").write_text(code)
            python.append(str(tmp_path / "worker.py"))
        clients.append(WorkerClient([str(root / name) for name in names], python=python))
        clients[-1].start()
        return clients[-1]

    yield begin
    for client in clients:
        client.close()


@pytest.fixture
def checkpoint(tmp_path):
    return having(tmp_path / "run", 1).latest().path


def worker_of(client):
    return client._child._process.pid


def is_gone(pid):
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def wait_for(true, timeout_s=20.0):
    until = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def posted(client, place, op, args, **options):
    """Posts; the list gets the reply, and before it the notes."""
    found = []
    client.post(place, op, args, found.append, noted=found.append, **options)
    return found


def test_a_checkpoint_goes_and_comes_back(start, checkpoint, tmp_path):
    client = start("a", "b")
    assert [each.shown for each in client.start()] == [str(tmp_path / "a"), str(tmp_path / "b")]  # once more
    for place in (0, 1):
        client.ask(place, "claim", CLAIM, 10)
        client.ask(place, "begun", {"attempt": 1, "from": {"attempt": None}}, 10)
        done = client.ask(place, "copy", {"attempt": 1, "path": str(checkpoint)}, 10)
        assert {*done} == {"size_bytes", "sent_bytes", "copied_bytes", "how", "took_s"}
        (tmp_path / f"back-{place}").mkdir()
        fetch = {"attempt": 1, "name": STEP, "into": str(tmp_path / f"back-{place}")}
        assert client.ask(place, "fetch", fetch, 10)["size_bytes"] == done["size_bytes"]
        assert listing(tmp_path / f"back-{place}") == listing(checkpoint)
        client.ask(place, "end", {"attempt": 1}, 10)
    seen = msgspec.convert(client.ask(0, "look", {}, 10), PlaceState)
    assert [(each.attempt, each.name) for each in seen.copies] == [(1, STEP)]
    assert seen.claims[0].ended
    file = {"attempt": 1, "name": STEP, "file": "manifest.json", "into": str(tmp_path / "one")}
    client.ask(0, "file", file, 10)
    assert (tmp_path / "one").read_bytes() == (checkpoint / "manifest.json").read_bytes()
    client.ask(0, "remove", {"attempt": 1, "of": 1, "name": STEP}, 10)
    assert client.ask(0, "look", {}, 10)["copies"] == []


def test_every_error_has_its_word(start, checkpoint, tmp_path):
    client = start("a")
    copy = {"attempt": 1, "path": str(checkpoint)}

    def kind(op, args):
        with pytest.raises(PlaceError) as caught:
            client.ask(0, op, args, 10)
        return caught.value.kind

    assert kind("copy", copy) == "foreign"
    client.ask(0, "claim", CLAIM, 10)
    assert kind("claim", CLAIM | {"owner": {"pid": 2}}) == "taken"
    assert kind("claim", CLAIM | {"run_json": '{"run": "s"}'}) == "foreign"
    assert kind("copy", copy | {"path": str(tmp_path / STEP)}) == "gone"
    assert kind("fetch", {"attempt": 1, "name": STEP, "into": str(tmp_path)}) == "gone"
    assert kind("copy", {}) == "refused"
    client.ask(0, "claim", CLAIM | {"attempt": 2}, 10)
    assert kind("copy", copy) == "later"


def test_a_silent_place_is_tried_again_until_it_answers(start, checkpoint, tmp_path):
    """Its parent folder is not mounted; then it is. Meanwhile the other place is served."""
    client = start("mount/here/a", "b")
    found = posted(client, 0, "claim", CLAIM, budget_s=60)
    client.ask(1, "claim", CLAIM, 10)
    wait_for(lambda: len(found) > 1)
    (tmp_path / "mount/here").mkdir(parents=True)
    wait_for(lambda: found[-1].ok is not None)
    assert {each.note for each in found[:-1]} == {"retrying"}
    assert client.ask(0, "copy", {"attempt": 1, "path": str(checkpoint)}, 10)["sent_bytes"]


def test_a_place_that_stays_silent_is_told_after_the_budget(start):
    client = start("mount/here/a")
    found = posted(client, 0, "look", {}, budget_s=0.5)
    wait_for(lambda: found and not found[-1].note)
    assert found[-1].error == "silent"
    assert "mount" in found[-1].text


def test_a_request_that_is_withdrawn_ends(start, checkpoint):
    """While it is sent, and while it waits for its turn or for the next try."""
    client = start("a", code=SLOW)
    client.ask(0, "claim", CLAIM, 10)
    found = []
    numbers = [client.post(0, "copy", {"attempt": 1, "path": str(checkpoint)}, found.append) for _ in range(2)]
    for number in numbers:
        client.cancel(number)
    wait_for(lambda: len(found) == 2)
    assert [each.error for each in found] == ["cancelled", "cancelled"]
    assert client.ask(0, "look", {}, 10)["copies"] == []


def test_a_worker_that_dies_is_told_and_started_again(start, checkpoint):
    client = start("mount/here/a", "b")
    client.ask(1, "claim", CLAIM, 10)
    first = worker_of(client)
    open_requests = [posted(client, 0, "look", {}) for _ in range(3)]
    wait_for(lambda: any(open_requests) and not client._outbox)  # what was not sent goes to the next worker
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: all(each and not each[-1].note for each in open_requests))
    assert {each[-1].error for each in open_requests} == {"silent"}
    assert "signal 9" in open_requests[0][-1].text
    assert client.ask(1, "copy", {"attempt": 1, "path": str(checkpoint)}, 20)["size_bytes"]
    assert worker_of(client) != first


def test_a_relative_path_is_that_of_the_start(start, tmp_path, monkeypatch):
    """Also for a worker that is started after the script has changed its directory."""
    monkeypatch.chdir(tmp_path)
    client = start("a", root=Path())
    os.kill(worker_of(client), signal.SIGKILL)
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    wait_for(lambda: client._child is None)  # a request that comes while a worker dies is answered with "silent"
    client.ask(0, "claim", CLAIM, 20)
    assert (tmp_path / "a/claims/000001.json").exists()


def test_a_library_that_hangs_ends_the_worker_and_not_the_run(start):
    """And what a library prints is no reply."""
    client = start("a", "b", code=HANGS)
    found = posted(client, 0, "look", {}, budget_s=0.1)
    wait_for(lambda: found and not found[-1].note)
    assert (found[-1].error, "hangs" in found[-1].text) == ("silent", True)
    assert client.ask(1, "claim", CLAIM, 20) == {"atomic": True}


def test_a_worker_that_cannot_start_says_why(tmp_path):
    (tmp_path / "worker.py").write_text("raise SystemExit('no such library')")
    client = WorkerClient([str(tmp_path / "a")], python=[sys.executable, str(tmp_path / "worker.py")])
    with pytest.raises(PlaceError, match="no such library"):
        client.start()
    client.close()
    client = WorkerClient([str(tmp_path / "a")], python=[str(tmp_path / "no-python")])
    with pytest.raises(PlaceError, match="cannot be started"):
        client.start()
    client.close()


def test_a_stopped_worker_delays_nobody(start):
    """Neither a request nor the end of the run waits for it longer than it is told to."""
    client = start("a")
    pid = worker_of(client)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    found = [posted(client, 0, "claim", CLAIM | {"owner": {"x": "y" * 100_000}}) for _ in range(20)]
    assert time.monotonic() - began < 1
    with pytest.raises(PlaceError, match="no answer"):
        client.ask(0, "look", {}, 0.2)
    client.close(0.2)
    assert time.monotonic() - began < 4
    wait_for(lambda: all(found) and is_gone(pid))
    assert {each[-1].error for each in found} == {"silent"}
    with pytest.raises(StoreError, match="closed"):
        client.ask(0, "look", {}, 1)


def test_signals_do_not_end_it_and_closing_does(start, tmp_path):
    """And it holds nothing open that a library of the run has left to all children."""
    with open(tmp_path / "left", "w") as left:
        os.set_inheritable(left.fileno(), True)
        client = start("a")
    pid = worker_of(client)
    assert str(tmp_path / "left") not in {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(pid, number)
    client.ask(0, "look", {}, 10)
    assert worker_of(client) == pid
    assert os.getpgid(pid) == pid != os.getpgid(0)
    began = time.monotonic()
    client.close()
    assert is_gone(pid)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    "text", [b"no request\n", b'{"id": 1, "op": "dance"}\n', b'{"id": 1, "op": "look", "place": 7}\n']
)
def test_a_bad_line_ends_it_with_a_clear_error(tmp_path, text):
    command = [sys.executable, "-P", "-m", "holdfast.mirror"]
    done = subprocess.run(command, input=text, capture_output=True, timeout=30, check=False)
    assert done.returncode == 2
    assert b'"bye"' in done.stdout
    assert b"no request" in done.stdout
    assert done.stdout.count(b"\n") == 1


PARENT = """
import os, signal, sys, time
from holdfast.mirror.client import WorkerClient
client = WorkerClient([sys.argv[1]])
client.start()
pid = client._child._process.pid
sibling = os.fork()
if sibling == 0:
    time.sleep(60)
print(pid, sibling, flush=True)
time.sleep(60)
"""


def test_it_ends_with_its_parent_though_a_sibling_holds_the_pipe(tmp_path):
    """kill -9 of the run: a loader that was forked beside the worker still has the pipe's other end."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "a")], stdout=subprocess.PIPE)
    worker, sibling = map(int, parent.stdout.readline().split())
    try:
        assert not is_gone(worker)
        parent.kill()
        parent.wait()
        began = time.monotonic()
        wait_for(lambda: is_gone(worker))
        assert time.monotonic() - began < 3
        assert not is_gone(sibling)
    finally:
        os.kill(sibling, signal.SIGKILL)
        parent.stdout.close()


def _asks_in_vain(client, queue):
    try:
        client.ask(0, "look", {}, 1)
    except UsageError as error:
        queue.put(str(error))


def test_forks_beside_a_busy_mirror_neither_hang_nor_keep_the_worker(start, checkpoint):
    """As a DataLoader's workers are forked, while the client's thread and the worker are busy."""
    client = start("a")
    client.ask(0, "claim", CLAIM, 10)
    stop, replies = threading.Event(), []

    def again(reply=None):
        replies.append(reply)
        if not stop.is_set():
            client.post(0, "copy", {"attempt": 1, "path": str(checkpoint)}, again)

    again()
    fork, pid = multiprocessing.get_context("fork"), worker_of(client)
    queue = fork.SimpleQueue()
    children = []
    for _ in range(20):
        before = len(replies)
        children.append(fork.Process(target=_asks_in_vain, args=(client, queue)))
        children[-1].start()
        wait_for(lambda: len(replies) > before)  # noqa: B023  called at once
    for child in children:
        child.join(20)
        assert child.exitcode == 0
        assert "forked child" in queue.get()
    stop.set()
    assert {each.error for each in replies[1:]} == {None}
    sleeper = fork.Process(target=time.sleep, args=(30,))
    sleeper.start()
    client.close()
    assert is_gone(pid)
    sleeper.kill()
    sleeper.join()


def test_the_run_s_process_never_imports_the_libraries(tmp_path):
    """And secrets go through the pipe: the worker's arguments and environment have none."""
    script = f"""
import sys
from pathlib import Path
from holdfast.mirror.client import WorkerClient
client = WorkerClient([{str(tmp_path / "a")!r}, "s3://AKIA:verysecret@bucket/x"])
client.start()
client.ask(0, "look", {{}}, 10)
pid = client._child._process.pid
assert "verysecret" not in Path(f"/proc/{{pid}}/cmdline").read_text() + Path(f"/proc/{{pid}}/environ").read_text()
client.close()
heavy = [name for name in sys.modules if name.split(".")[0] in ("fsspec", "s3fs", "tenacity", "paramiko", "numpy")]
print(heavy, [name for name in sys.modules if name in ("holdfast.mirror.lane", "holdfast.mirror.place")])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[] []\n"


def test_memory_is_bounded(start, tmp_path):
    """A file far bigger than what the worker may use: it passes in pieces, there and back."""
    from holdfast.store.store import Store

    with Store(tmp_path / "big").directory(step=1) as path, open(path / "data", "wb") as file:
        file.writelines(bytes([number]) * (4 << 20) for number in range(32))
    client = start("a")
    client.ask(0, "claim", CLAIM, 10)
    before = _peak_mib(worker_of(client))
    client.ask(0, "copy", {"attempt": 1, "path": str(tmp_path / "big/checkpoints" / STEP)}, 60)
    (tmp_path / "back").mkdir()
    client.ask(0, "fetch", {"attempt": 1, "name": STEP, "into": str(tmp_path / "back")}, 60)
    assert _peak_mib(worker_of(client)) - before < 100


def _peak_mib(pid):
    (found,) = re.findall(r"VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found) >> 10
