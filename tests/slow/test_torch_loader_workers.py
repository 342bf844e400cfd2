"""torch's DataLoader with workers under a run: neither their number nor how they start or live changes anything."""

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress

import pytest
import test_torch_loader as laws
import torch
from test_torch_loader import Drawing, loader, run_of, workers
from torch.utils.data import DataLoader

from feeds import plain
from holdfast import Run
from holdfast.children import processes
from holdfast.data import Stream, Window
from holdfast.data.feed import feed_for
from supervised import until
from toy import Toy

WORKERS = [{"num_workers": 1}, {"num_workers": 4, "prefetch_factor": 3}]


@pytest.mark.parametrize("settings", WORKERS, ids=str)
def test_any_number_of_workers_changes_nothing(settings, tmp_path):
    """What tests/fast/test_torch_loader.py asks of two persistent ones."""
    laws.changes_nothing(tmp_path, settings)
    laws.breaking_out_changes_nothing(settings)
    laws.is_read_again(settings)


def test_spawned_workers_change_nothing():
    """Workers that share nothing with the process that starts them."""
    expected, positions = run_of("shuffle")
    settings = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "spawn"}
    feed = feed_for(loader("shuffle", **settings), 1)
    assert plain(feed.open(1, positions[1, 2, "step"])) == expected[1][2:]
    assert plain(feed.open(2, None)) == expected[2]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_stream_in_persistent_workers_gives_its_batches(method):
    """However they start, and however many batches they fetch ahead: from a position on, and in the next epoch. Asking
    for pinned memory where there is none does no harm.
    """

    def made(**settings):
        stream = Stream(range(50), 4, seed=2, shuffle=Window(2, 9), map=abs)
        return feed_for(DataLoader(stream, batch_size=None, **settings), 1)

    alone = made()
    expected = [plain(alone.open(epoch, None)) for epoch in (1, 2)]
    batches = alone.open(1, None)
    [next(batches) for _ in range(5)]
    settings = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4, "pin_memory": True}
    feed = made(multiprocessing_context=method, **settings)
    assert expected[0][5:] == plain(feed.open(1, alone.position(5)))
    assert expected[1] == plain(feed.open(2, None))


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_draw_what_those_of_a_plain_loader_draw(persistent):
    """An unshuffled loader whose dataset draws random numbers hands out the same samples with Holdfast and without."""
    settings = {"num_workers": 2, "persistent_workers": persistent, "batch_size": 4}
    torch.manual_seed(5)
    plain_loader = DataLoader(Drawing(), **settings)
    expected = [plain(plain_loader) for _ in range(2)]
    torch.manual_seed(5)
    feed = feed_for(DataLoader(Drawing(), **settings), 1)
    assert [plain(feed.open(epoch, None)) for epoch in range(2)] == expected
    assert expected[0] != expected[1]


def test_persistent_workers_end_with_the_run(tmp_path):
    """Left to the garbage collector, each of them is waited for in vain for 5 s: its queue is collected before it."""
    before = workers()
    with Run(tmp_path, {"toy": Toy()}, every=None, background=False) as run:
        users = loader("sequential", num_workers=2, persistent_workers=True)
        for _ in run.epochs(2):
            for _ in run.batches(users):
                assert len(workers() - before) == 2
    assert workers() - before == set()


SCRIPT = """
    import os, signal, sys, time
    from torch.utils.data import DataLoader
    from holdfast.data.feed import feed_for

    class Slow:
        def __len__(self): return 400
        def __getitem__(self, index):
            time.sleep(0.01)
            return int(index)

    if __name__ == "__main__":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)
        settings = {"persistent_workers": True, "multiprocessing_context": sys.argv[1]}
        feed = feed_for(DataLoader(Slow(), batch_size=4, num_workers=2, **settings), 1)
        seen = 0
        for batch in feed.open(0, None):
            seen += len(batch)
            print("go on", flush=True)
        print(seen, flush=True)
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_ignore_the_signals_that_stop_a_run(start, tmp_path):
    """A signal to the whole group, as Slurm and Ctrl-C send it, costs no batch; afterwards the script ends at once."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(path), start]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as train:
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
                assert train.stdout.readline() == b"go on\n"  # one line for each batch of the first ones
                os.killpg(train.pid, number)
            out, err = train.communicate(timeout=120)
        except BaseException:
            os.killpg(train.pid, signal.SIGKILL)
            raise
    assert (0, b"400", b"") == (train.returncode, out.splitlines()[-1], err)


ORPHANED = """
    import os, signal
    import torch.utils.data._utils as torch_workers

    torch_workers.MP_STATUS_CHECK_INTERVAL = torch_workers.worker.MP_STATUS_CHECK_INTERVAL = 600.0

    from torch.utils.data import DataLoader
    from holdfast.torch.workers import workers_ignore_stops

    def told(worker):
        os.write(1, b"%d\\n" % os.getpid())  # in one piece

    if __name__ == "__main__":
        with workers_ignore_stops():
            for batch in DataLoader(range(400), num_workers=2, prefetch_factor=2, worker_init_fn=told):
                signal.pause()
"""


def test_workers_whose_run_was_killed_end_at_a_sigterm(tmp_path):
    """torch's workers look for their user every 5 s, and a supervisor waits for them; here they would look at 600 s."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(ORPHANED))
    with subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, text=True, start_new_session=True) as train:
        orphans = {int(train.stdout.readline()) for _ in range(2)}
        train.kill()
        train.wait()
        assert all(map(processes.is_running, orphans))
        os.killpg(train.pid, signal.SIGTERM)
        try:
            until(lambda: not any(map(processes.is_running, orphans)), "their end")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(train.pid, signal.SIGKILL)
