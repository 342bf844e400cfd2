"""Metrics and images on a GPU: the same numbers as on the CPU."""

import pytest
import torch
from PIL import Image
from torch import distributed

from holdfast.torch.metrics import MetricsTracker
from holdfast.torch.sharded import DistributedShardedDataset

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda finds no GPU here"),
]


def test_metrics_of_a_gpu_are_those_of_the_cpu():
    """Tensors of both, in one sum; no update waits for the device."""
    metrics = MetricsTracker()
    for step in range(5):
        loss = torch.tensor(step / 4, device="cuda")
        metrics.update({"loss": loss, "other": loss.cpu()}, weight=torch.tensor(step, device="cuda"))
        metrics.update({"seen": 4}).update({"seen": torch.tensor(1, device="cuda")})
    assert all(isinstance(each.total, torch.Tensor) for each in metrics._fresh.values())
    expected = {"loss": 7.5 / 10, "other": 7.5 / 10, "seen": 25.0}
    assert dict(metrics.reduce().local) == dict(metrics.agg) == expected


def test_a_group_that_works_on_a_gpu_reduces_there():
    """One rank of NCCL's, through every collective that several would make."""
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        metrics = MetricsTracker().update({"a": 1}).update({"b": torch.tensor(3.0, device="cuda")}, weight=2)
        found = metrics._reduce_over_ranks()
        assert {name: each.value for name, each in found.items()} == {"a": 1.0, "b": 3.0}
    finally:
        distributed.destroy_process_group()


def test_images_lie_on_the_gpu(tmp_path):
    """Samples and targets, each as one tensor there."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.new("RGB", (5, 4), (number, 7, 9)).save(tmp_path / name / f"{number}.png")
    dataset = DistributedShardedDataset(tmp_path, shuffle=False, device_id="cuda")
    assert (dataset.samples.device.type, dataset.samples.shape) == ("cuda", (6, 3, 4, 5))
    assert dataset.samples[:, 0, 0, 0].tolist() == [0, 1, 2] * 2
    assert dataset.targets.tolist() == [0, 0, 0, 1, 1, 1]
