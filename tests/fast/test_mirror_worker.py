"""The worker and its client: nothing that happens to one of them stalls, ends or outlives the other."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from holdfast import Last
from holdfast.errors import UsageError
from holdfast.mirror import client as clients
from holdfast.mirror.client import PlaceError, WorkerClient
from holdfast.store.checkpoint_index import CheckpointIndex
from holdfast.store.store import Store
from mirror_story import IN_PARTS, SHORTER
from mirrored import look
from stores import having, listing, put
from toy import waited_for

RUN = '{"run": "r"}'
CLAIM = {"attempt": 1, "run_json": RUN, "owner": {"pid": 1}, "entered": 1.0}
FRESH = {"attempt": None, "name": None}
STEP = "step-000000001"

HANGS = """
import time
from importlib import import_module
from operator import attrgetter
from holdfast.mirror import folder, worker
worker.PATIENCE_S = 0.0
def names(*_):
    print("a library prints this", flush=True)
    time.sleep(60)
folder.FolderPlace.names = names
from holdfast.mirror import __main__
"""

SLOW = """
import time
from importlib import import_module
from operator import attrgetter
from holdfast.mirror import sending
real = sending.read_pieces
def pieces(*args):
    for piece in real(*args):
        time.sleep(0.3)
        yield piece
sending.read_pieces = pieces
from holdfast.mirror import __main__
"""


class Listening:
    """What the client's thread has told."""

    def __init__(self):
        self.events, self.losses = [], []

    def handle_event(self, event):
        self.events.append(event)

    def on_worker_lost(self, why):
        self.losses.append(why)

    def on_tick(self):
        pass

    def of(self, *what):
        return [event for event in self.events if event.what in what]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a client of the places of these names, with a worker that runs `code` instead of its own."""
    monkeypatch.setattr(clients, "RETRY_S", (0.1,))
    begun = []

    def begin(*names, code=None, root=tmp_path):
        python = [sys.executable]
        if code:
            (tmp_path / "worker.py").write_text(code)
            python.append(str(tmp_path / "worker.py"))
        places = [(str(root / name), Last(1)) for name in names]
        begun.append(WorkerClient(CheckpointIndex(tmp_path / "run"), places, python=python))
        begun[-1].start()
        waited_for(lambda: begun[-1]._child is not None)
        return begun[-1]

    yield begin
    for client in begun:
        client.close()


@pytest.fixture
def run(tmp_path):
    return having(tmp_path / "run", 1)


@pytest.fixture
def checkpoint(run):
    return run.latest().path


def worker_of(client):
    waited_for(lambda: client._child is not None)
    return client._child._process.pid


def is_gone(pid):
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def begun(client, *places):
    """Claims these places, and lets them be copied to."""
    listening = Listening()
    client.set_listener(listening)
    for place in places:
        client.ask_one("claim", CLAIM, place, 20)
    client.claim_in_later_workers(CLAIM)
    for place in places:
        client.start_copying(place, [], FRESH)
    return listening


def there(place):
    return [(copy.attempt, copy.name) for copy in look(place).copies]


def test_a_checkpoint_goes_and_comes_back(start, checkpoint, tmp_path):
    client = start("a", "b")
    told = begun(client, 0, 1)
    waited_for(lambda: len(told.of("copied")) == 2)
    for place, done in [(event.place, event.facts) for event in told.of("copied")]:
        assert {*done} == {"size_bytes", "sent_bytes", "copied_bytes", "how", "took_s"}
        (tmp_path / f"back-{place}").mkdir()
        fetch = {"attempt": 1, "name": STEP, "into": str(tmp_path / f"back-{place}")}
        assert client.ask_one("fetch", fetch, place, 10) == {"size_bytes": done["size_bytes"]}
        assert listing(tmp_path / f"back-{place}") == listing(checkpoint)
    name = next(checkpoint.glob("*.safetensors")).name
    client.ask_one("file", {"attempt": 1, "name": STEP, "file": name, "into": str(tmp_path / "one")}, 0, 10)
    assert (tmp_path / "one").read_bytes() == (checkpoint / name).read_bytes()
    client.send_order("drain", until=time.time() + 20)
    waited_for(lambda: len(told.of("drained")) == 2)
    assert ([(1, STEP)], True) == (there(tmp_path / "a"), look(tmp_path / "a").claims[0].ended)


def test_every_error_has_its_word(start, checkpoint, tmp_path):
    client = start("a")

    def kind(do, args):
        with pytest.raises(PlaceError) as caught:
            client.ask_one(do, args, 0, 10)
        return caught.value.kind

    client.ask_one("claim", CLAIM, 0, 10)
    assert kind("claim", CLAIM | {"owner": {"pid": 2}}) == "taken"
    assert kind("claim", CLAIM | {"run_json": '{"run": "s"}'}) == "foreign"
    assert kind("fetch", {"attempt": 1, "name": STEP, "into": str(tmp_path)}) == "gone"
    client.ask_one("claim", CLAIM | {"attempt": 2}, 0, 10)
    assert kind("claim", CLAIM) == "later"


def test_a_silent_place_is_tried_again_until_it_answers(start, checkpoint, tmp_path):
    """Its parent folder is not mounted; then it is. Meanwhile the other place is served."""
    client = start("mount/here/a", "b")
    told = begun(client, 1)
    client.send_order("claim", 0, **CLAIM)
    waited_for(lambda: [event.place for event in told.of("failing")] and told.of("copied"))
    assert {0} == {event.place for event in told.of("failing")}
    (tmp_path / "mount/here").mkdir(parents=True)
    waited_for(lambda: told.of("joined"))
    client.start_copying(0, [], FRESH)
    waited_for(lambda: there(tmp_path / "mount/here/a"))


@pytest.mark.parametrize("order", ["yield", "drain"])
def test_a_copy_that_is_not_wanted_any_more_ends(start, checkpoint, tmp_path, order):
    """At its next piece: the disk is short of space, or the attempt is over."""
    client = start("a", code=SLOW)
    told = begun(client, 0)
    waited_for(lambda: told.of("copying"))
    if order == "yield":
        client.send_order("yield", newest="step-000000002")
        waited_for(lambda: [event.name for event in told.of("copying")] == [STEP, ""])
    else:
        client.send_order("drain", until=time.time())
        waited_for(lambda: told.of("drained"))
    assert [] == there(tmp_path / "a")


def test_a_worker_that_dies_is_told_and_started_again(start, checkpoint, tmp_path):
    """Who asks it is told, too; the next one claims the places again, and copies what lacks."""
    client = start("mount/here/a", "b")
    told = begun(client, 1)
    first, found = worker_of(client), []

    def ask():
        found.append(client.ask("look", {}, [0], 20)[0])

    asking = threading.Thread(target=ask)
    asking.start()
    waited_for(lambda: client.failing or told.of("failing"))
    os.kill(first, signal.SIGKILL)
    asking.join()
    assert (found[0].kind, "signal 9" in found[0].text) == ("silent", True)
    waited_for(lambda: told.of("joined"))
    assert "signal 9" in told.losses[0]
    client.start_copying(1, [(1, STEP)], FRESH)
    waited_for(lambda: there(tmp_path / "b") == [(1, STEP)])


def test_a_relative_path_is_that_of_the_start(start, tmp_path, monkeypatch):
    """Also for a worker that is started after the script has changed its directory."""
    monkeypatch.chdir(tmp_path)
    client = start("a", root=Path())
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    first = worker_of(client)
    os.kill(first, signal.SIGKILL)
    waited_for(lambda: worker_of(client) != first)
    client.ask_one("claim", CLAIM, 0, 20)
    assert (tmp_path / "a/claims/000001.json").exists()


def test_a_library_that_hangs_ends_the_worker_and_not_the_run(start):
    """And what a library prints is no event."""
    client = start("a", code=HANGS)
    with pytest.raises(PlaceError, match="hangs") as hung:
        client.ask_one("look", {"budget_s": 0.1}, 0, 20)
    assert hung.value.kind == "silent"
    assert client.ask("look", {}, [0], 0.2)[0].kind == "silent"


def test_a_worker_that_cannot_start_says_why(tmp_path):
    (tmp_path / "worker.py").write_text("raise SystemExit('no such library')")
    for python, says in [
        ([sys.executable, str(tmp_path / "worker.py")], "no such library"),
        ([str(tmp_path / "no-python")], "cannot be started"),
    ]:
        client = WorkerClient(CheckpointIndex(tmp_path), [(str(tmp_path / "a"), Last(1))], python=python)
        client.start()
        with pytest.raises(PlaceError, match=says):
            client.ask_one("look", {}, 0, 20)
        client.close()


def test_a_stopped_worker_delays_nobody_and_gets_no_cut_order(start, run, tmp_path):
    """Neither an order nor the end of the run waits for it. When it reads again, it does what the orders said."""
    client = start("a")
    told, pid = begun(client, 0), worker_of(client)
    waited_for(lambda: told.of("copied"))
    os.kill(pid, signal.SIGSTOP)
    put(run, 2)
    began = time.monotonic()
    for _ in range(10_000):
        client.send_order("committed")
    assert time.monotonic() - began < 2
    os.kill(pid, signal.SIGCONT)
    waited_for(lambda: there(tmp_path / "a") == [(1, "step-000000002")])
    assert (pid, []) == (worker_of(client), told.losses)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(PlaceError, match="no answer"):
        client.ask_one("look", {}, 0, 0.2)
    client.close()
    waited_for(lambda: is_gone(pid), 4)


def test_signals_do_not_end_it_and_closing_does(start, tmp_path):
    """And it holds nothing open that a library of the run has left to all children."""
    with open(tmp_path / "left", "w") as left:
        os.set_inheritable(left.fileno(), True)
        client = start("a")
    pid = worker_of(client)
    client.ask_one("look", {}, 0, 20)
    assert str(tmp_path / "left") not in {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(pid, number)
    assert worker_of(client) == pid
    assert os.getpgid(pid) == pid != os.getpgid(0)
    began = time.monotonic()
    client.close()
    assert is_gone(pid)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("text", [b"no order\n", b'{"do": "look", "id": 1, "place": 7}\n', b'{"do": "open"}\n'])
def test_a_bad_line_ends_it_with_a_clear_error(tmp_path, text):
    command = [sys.executable, "-P", "-m", "holdfast.mirror"]
    done = subprocess.run(command, input=text, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"no order" in done.stderr


PARENT = """
import os, signal, sys, time
from pathlib import Path
from holdfast import Last
from holdfast.mirror.client import WorkerClient
from holdfast.store.checkpoint_index import CheckpointIndex
client = WorkerClient(CheckpointIndex(Path(sys.argv[1])), [(sys.argv[1], Last(1))])
client.start()
client.ask("look", {}, [0], 20)
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
        waited_for(lambda: is_gone(worker))
        assert time.monotonic() - began < 3
        assert not is_gone(sibling)
    finally:
        os.kill(sibling, signal.SIGKILL)
        parent.stdout.close()


def _asks_in_vain(client, queue):
    try:
        client.send_order("committed")
    except UsageError as error:
        queue.put(str(error))


def test_forks_beside_a_busy_mirror_neither_hang_nor_keep_the_worker(start, run):
    """As a DataLoader's workers are forked, while the client's thread and the worker are busy."""
    client = start("a")
    told = begun(client, 0)
    fork, pid = multiprocessing.get_context("fork"), worker_of(client)
    queue = fork.SimpleQueue()
    children = []
    for step in range(2, 10):
        before = len(told.of("copied"))
        put(run, step)
        client.send_order("committed")
        children.append(fork.Process(target=_asks_in_vain, args=(client, queue)))
        children[-1].start()
        waited_for(lambda: len(told.of("copied")) > before)  # noqa: B023  called at once
    for child in children:
        child.join(20)
        assert child.exitcode == 0
        assert "forked child" in queue.get()
    assert [] == told.of("failing")
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
from holdfast import Last
from holdfast.mirror.client import WorkerClient
from holdfast.store.checkpoint_index import CheckpointIndex
places = [({str(tmp_path / "a")!r}, Last(1)), ("s3://AKIA:verysecret@bucket/x", Last(1))]
client = WorkerClient(CheckpointIndex(Path({str(tmp_path / "run")!r})), places)
client.start()
client.ask_one("look", {{}}, 0, 10)
pid = client._child._process.pid
assert "verysecret" not in Path(f"/proc/{{pid}}/cmdline").read_text() + Path(f"/proc/{{pid}}/environ").read_text()
client.close()
heavy = [name for name in sys.modules if name.split(".")[0] in ("fsspec", "s3fs", "tenacity", "paramiko", "numpy")]
print(heavy, [name for name in sys.modules if name in ("holdfast.mirror.replicator", "holdfast.mirror.place")])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[] []\n"


def test_memory_is_bounded(start, tmp_path):
    """A file far bigger than what the worker may use: it passes in pieces, there and back."""
    client = start("a")
    told = begun(client, 0)
    before = _peak_mib(worker_of(client))
    with Store(tmp_path / "run").directory(step=1) as path, open(path / "data", "wb") as file:
        file.writelines(bytes([number]) * (4 << 20) for number in range(32))
    client.send_order("committed")
    waited_for(lambda: told.of("copied"), 60)
    (tmp_path / "back").mkdir()
    client.ask_one("fetch", {"attempt": 1, "name": STEP, "into": str(tmp_path / "back")}, 0, 60)
    assert _peak_mib(worker_of(client)) - before < 100


def _peak_mib(pid):
    (found,) = re.findall(r"VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found) >> 10


def test_a_place_that_was_emptied_is_not_claimed_anew_by_the_next_worker(start, run, tmp_path):
    """It may be a mount point without its file system: copies there would be on the wrong disk."""
    client = start("place")
    listening = begun(client, 0)
    waited_for(lambda: listening.of("copied"))
    (tmp_path / "place").rename(tmp_path / "elsewhere")
    (tmp_path / "place").mkdir()
    os.kill(worker_of(client), signal.SIGKILL)
    waited_for(lambda: listening.of("lost"))
    assert "the claim of attempt 1 is gone" in listening.of("lost")[0].text
    assert [] == [*(tmp_path / "place").iterdir()]


def test_the_end_of_a_run_cuts_the_pause_before_the_next_worker(start, run, monkeypatch):
    """A run that waits for its last copies does not wait for that pause, too."""
    client = start("place")
    listening = begun(client, 0)
    waited_for(lambda: listening.of("copied"))
    monkeypatch.setattr(clients, "RETRY_S", (60.0,))
    killed = worker_of(client)
    os.kill(killed, signal.SIGKILL)
    waited_for(lambda: client._child is None)
    client.restart_worker_soon()
    waited_for(lambda: client._child is not None and worker_of(client) != killed, 10)


def test_the_limits_that_long_stories_set_are_there():
    """A renamed limit would only show in a story of tests/prove."""
    for module, name, _ in (*SHORTER, *IN_PARTS):
        assert attrgetter(str(name))(import_module(f"holdfast.mirror.{module}")) > 0
