"""Samples that others lost or doubled: each public report in small, and what is right.

Their loaders are not run here. `benchmarks/streams_resumed.py` does that for those that can be installed.
"""

import itertools
from collections import Counter

import numpy as np
import pytest
from torch.utils.data import DataLoader

from holdfast.data import Indexed, Mix, Stream, Window
from holdfast.data.feed import feed_for


def batches(make, world, workers, epoch, position):
    """What each rank takes of an epoch from a position, batch by batch, and the position behind each."""
    found, positions = [], []
    for rank in range(world):
        loader = DataLoader(make(ranks=(rank, world)), batch_size=None, num_workers=workers)
        feed, start = feed_for(loader, 0), 0 if position is None else position["batches"]
        walk = feed.open(epoch, position)
        found.append([])
        positions.append([])
        for number, batch in enumerate(walk, start + 1):
            found[-1].append(np.asarray(batch).tolist())
            positions[-1].append(feed.position(number))
    assert all(each == positions[0] for each in positions)  # every rank writes the same
    together = [[*itertools.chain(*step)] for step in zip(*found, strict=True)]
    return [sorted(step) for step in together], positions[0]


def goes_on(make, cuts, layouts, epoch=0):
    """Cut behind each of `cuts` batches, resumed with the next of `layouts` (ranks, workers): the same batches."""
    whole, _ = batches(make, 1, 0, epoch, None)
    position, walked = None, []
    for cut, (world, workers) in itertools.zip_longest([*cuts, None], layouts):
        rest, positions = batches(make, world, workers, epoch, position)
        taken = len(rest) if cut is None else cut
        walked += rest[:taken]
        position = None if cut is None else positions[taken - 1]
    assert whole == walked
    return whole


def files(lengths, batch, **options):
    sources = [
        Indexed(range(sum(lengths[:number]), sum(lengths[: number + 1])), f"f{number}")
        for number in range(len(lengths))
    ]
    return lambda **more: Stream(sources, global_batch_size=batch, **{**options, **more})


REPORTS = {
    "huggingface/datasets#7901: from the third sample on a state could not be loaded": (
        lambda: goes_on(files([12], 1), [3], [(1, 0), (1, 0)])
    ),
    "huggingface/datasets#8408: a buffer's samples were lost, and others came twice": (
        lambda: goes_on(files([100, 100], 1, shuffle=Window(2, 100)), [20], [(1, 0), (1, 0)])
    ),
    "huggingface/datasets#7538: of four shards on four ranks samples were dropped": (
        lambda: goes_on(files([6, 6, 6, 6], 4, shuffle=False), [2], [(4, 0), (4, 0)])
    ),
    "huggingface/datasets#8295: the second resume began at the start": (
        lambda: goes_on(files([40], 4), [3, 2], [(1, 1), (1, 1), (1, 1)])
    ),
    "webdataset/webdataset#271: two epochs over much data, stopped anywhere": (
        lambda: goes_on(files([30, 30, 30], 8, shuffle=Window(2, 20)), [5], [(1, 3), (1, 3)], epoch=1)
    ),
    "webdataset/webdataset#234: with several workers no place can be restored": (
        lambda: goes_on(files([25, 25], 5), [4], [(1, 3), (1, 2)])
    ),
    "mosaicml/streaming#437: another loader began at the first sample": (
        lambda: goes_on(files([10], 1, shuffle=False), [5], [(1, 0), (1, 0)])
    ),
    "mosaicml/streaming#869: past the first epoch, with sources that are repeated": (
        lambda: goes_on(
            lambda **more: Stream(Mix([range(40), range(100, 107)], [1, 1], until="all"), global_batch_size=8, **more),
            [4],
            [(2, 0), (2, 0)],
            epoch=2,
        )
    ),
    "pytorch/torchtitan#811: saved on four ranks, resumed on two, and on two, then four": (
        lambda: goes_on(files([50, 50], 8), [3, 4], [(4, 0), (2, 0), (4, 0)])
    ),
    "NVIDIA-NeMo/Megatron-Bridge#5637: what rank 1 had read was dropped on one rank": (
        lambda: goes_on(files([24], 4), [2], [(2, 0), (1, 0)])
    ),
    "PrimeIntellect-ai/prime-rl#1035: two ranks saved places three steps apart": (
        lambda: goes_on(files([60], 6), [4], [(2, 2), (2, 2)])
    ),
}


@pytest.mark.parametrize("report", REPORTS)
def test_what_was_reported_elsewhere_is_right_here(report):
    """Each sample comes once, in the batch in which it would have come."""
    whole = REPORTS[report]()
    seen = Counter(itertools.chain(*whole))
    assert {1} == {*seen.values()} or "repeated" in report


def test_a_checkpoint_at_an_epochs_end_begins_the_next_one():
    """verl-project/verl#7401: a resume from it skipped the next epoch, and ended without an error."""
    make = files([20], 4)
    _, positions = batches(make, 1, 0, 0, None)
    assert 5 == len(positions)
    feed = feed_for(make(), 0)
    assert [] == [*feed.open(0, positions[-1])]
    assert batches(make, 1, 0, 1, None)[0] == [sorted(each.tolist()) for each in feed.open(1, positions[-1])]
