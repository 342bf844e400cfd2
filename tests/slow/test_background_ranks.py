"""Background saves among ranks: no rank's save waits for a rank whose loop waits for it."""

from __future__ import annotations

import threading

import pytest

from holdfast import Every, Last, Run, Store
from run_ranks import among_threads

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

WIDTH = 64


@pytest.fixture
def among(monkeypatch):
    return among_threads(monkeypatch)


class Full:
    """What a rank without memory for snapshots has in an arena's place."""

    size_bytes, is_warming = 1, False

    def reserve(self, *_):
        raise MemoryError("no memory for a snapshot")

    def release(self):
        pass


def train(path, rank, together, before=lambda run: None, steps=5):
    """A save at every step; the ranks wait for each other in each, as in a framework's collective."""
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    with Run(path, {"model": model, "optimizer": optimizer}, every=Every(steps=1), keep=Last(99)) as run:
        for _ in run.steps(steps):
            before(run)
            optimizer.zero_grad()
            model(torch.ones(2, WIDTH)).square().mean().backward()
            together.wait(20)
            optimizer.step()
    return run.step


def test_a_rank_without_memory_for_a_snapshot_holds_up_no_other(tmp_path, among):
    """It waits until its own share is written, and not for a rank whose loop waits for it."""
    together = threading.Barrier(2)

    def cramped(run):
        run._session.saves.arena = Full()

    found = among(2, lambda rank: train(tmp_path, rank, together, cramped if rank else lambda run: None), timeout_s=6.0)
    assert [5, 5] == found
    assert [1, 2, 3, 4, 5] == [checkpoint.step for checkpoint in Store(tmp_path).checkpoints()]


def test_a_rank_that_fails_is_not_kept_by_a_save_in_flight(tmp_path, among, capsys):
    """Its error ends all of them; nobody waits until a deadline. What was saved before it stays."""
    together = threading.Barrier(2)

    def fail(run):
        if run.step == 3:
            raise ValueError("mine")

    def work(rank):
        try:
            return train(tmp_path, rank, together, fail if rank else lambda run: None)
        finally:
            together.abort()  # a framework's collective ends with the process of another rank

    found = among(2, work, timeout_s=6.0)
    assert [threading.BrokenBarrierError, ValueError] == [type(each) for each in found]
    told = capsys.readouterr().err
    assert "did not come" not in told
    steps = [checkpoint.step for checkpoint in Store(tmp_path).checkpoints()]
    assert steps in ([1, 2], [1, 2, 3])
