"""Streams in the loops of frameworks: killed and started again, a training ends as the undisturbed one does."""

import json
import sys

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

from framework_runs import trained
from holdfast.accelerate.loader import feed_for
from holdfast.data import Stream
from holdfast.errors import UsageError

FRAMEWORKS = ("accelerate", "jax", "keras", "lightning", "transformers")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_training_over_a_stream_ends_with_the_same_bits(framework, tmp_path):
    """Its weights show the order of the samples, and what their `map` has drawn."""
    whole = trained([sys.executable], "streamed", tmp_path / "whole", framework)
    killed = trained(
        [sys.executable], "streamed", tmp_path / "killed", framework, strikes=("batch:4:KILL", "batch:10:KILL")
    )
    assert json.loads(whole.result) == json.loads(killed.result)
    assert 2 == killed.said.count("resumes at step")


def test_batches_of_a_stream_are_shared_out_once():
    """A loader that would share them out between processes again is refused, with what to do instead. Older versions
    of accelerate refuse it themselves.
    """
    loader = DataLoader(Stream(range(42), global_batch_size=8), batch_size=None)
    with pytest.raises((UsageError, ValueError), match=r"leave it out of prepare|the batch sampler has no batch size"):
        feed_for(prepare_data_loader(loader, num_processes=2, process_index=0, device=torch.device("cpu")), 1)
