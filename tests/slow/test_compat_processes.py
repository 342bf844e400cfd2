"""cycling_utils' names with processes: loaders with workers, and saves that are killed."""

import itertools
import os
import random
import signal
from contextlib import suppress
from multiprocessing import Pipe, get_context

import pytest
import torch
from test_compat_names import sampler_for
from torch.utils.data import DataLoader

from compat_scripts import LINK, number_in, resume, save
from faults import door
from holdfast.compat.cycling_utils import atomic_torch_save


def train(output_directory, fatal, say):
    """Until it is killed, by itself, at its `fatal`th change of the file system."""
    signal.alarm(100)  # forked by a process with threads: should it hang, it ends
    changes = itertools.count(1)

    def change(call, perform):
        if next(changes) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return perform()

    saver, number = resume(output_directory, keep_last=1)
    say.send(number or 0)
    with door(change):
        while True:
            number = (number or 0) + 1
            save(saver, number, force_save=number % 20 == 0)
            say.send(number)


def test_sigkill_at_seeded_instants_leaves_the_latest_whole(tmp_path):
    """Fifty kills, each at a change drawn at random: a start goes on from what was acknowledged, or from the one
    after.
    """
    generator, said = random.Random(5), [0]
    for _ in range(50):
        hear, say = Pipe(duplex=False)
        process = get_context("fork").Process(target=train, args=(tmp_path, generator.randrange(1, 120), say))
        process.start()
        say.close()
        resumed = hear.recv()
        assert resumed in {said[-1], said[-1] + 1}
        said.append(resumed)
        with suppress(EOFError):
            while True:
                said.append(hear.recv())
        process.join()
        assert process.exitcode == -signal.SIGKILL
        if os.path.lexists(tmp_path / LINK):
            assert number_in(os.path.realpath(tmp_path / LINK)) in {said[-1], said[-1] + 1}
    assert 20 < said[-1] < 250


def test_what_a_killed_save_left_goes_with_the_next(tmp_path):
    """However many were killed in `atomic_torch_save`: their parts do not fill the disk."""
    path = tmp_path / "latest.pt"
    atomic_torch_save({"step": 1}, path)

    class Deadly:
        def __reduce__(self):
            os.kill(os.getpid(), signal.SIGKILL)

    state = {"weights": torch.ones(10), "deadly": Deadly()}
    for _ in range(2):
        process = get_context("fork").Process(target=atomic_torch_save, args=(state, path))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert len(os.listdir(tmp_path)) == 2  # never more than one part
    atomic_torch_save({"step": 2}, path)
    assert ["latest.pt"] == os.listdir(tmp_path)
    assert {"step": 2} == torch.load(path, weights_only=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_documented_loop_goes_on_in_the_midst_of_an_epoch(tmp_path, workers):
    """Save the state after any batch; a new sampler in a new loader hands out the rest, and then whole epochs."""

    def train(sampler, until=None):
        loader = DataLoader(sampler.dataset, sampler=sampler, batch_size=4, num_workers=workers)
        for epoch in range(sampler.epoch, 3):
            with sampler.in_epoch(epoch):
                for (batch,) in loader:
                    sampler.advance(len(batch))
                    seen.append((epoch, sampler.progress, batch.tolist()))
                    atomic_torch_save({"sampler": sampler.state_dict()}, tmp_path / "latest.pt")
                    if len(seen) == until:
                        return

    seen = []
    train(sampler_for(13))
    whole, batches = seen, 4
    assert len(whole) == 3 * batches
    for until in (1, batches - 1, batches, batches + 2):
        seen = []
        train(sampler_for(13), until)
        resumed = sampler_for(13)
        resumed.load_state_dict(torch.load(tmp_path / "latest.pt", weights_only=True)["sampler"])
        assert (seen[-1][0], seen[-1][1]) == (resumed.epoch, resumed.progress)
        train(resumed)
        assert whole == seen
