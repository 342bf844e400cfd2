"""Streams of Hugging Face's kind in torchdata's loaders and nodes."""

import pytest
from test_streams import Shuffles, Stays, cut_anywhere
from torch.utils.data import IterableDataset
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast.data.feed import feed_for

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own


def of_datasets(*bases):
    return type("Stream", bases, {"__module__": "datasets.iterable_dataset"})()


def test_a_stream_whose_state_leaves_its_buffer_out_is_read_again():
    """torchdata would keep that state. So is any in persistent workers, where epochs after a resume were shortened:
    huggingface/datasets#7447.
    """
    stream, stays = of_datasets(Shuffles, IterableDataset), of_datasets(Stays, IterableDataset)
    persistent = StatefulDataLoader(stays, num_workers=1, persistent_workers=True)
    assert not feed_for(StatefulDataLoader(stays, num_workers=1), 1).replays
    for loader in (StatefulDataLoader(stream), persistent, nodes.Loader(nodes.IterableWrapper(stream))):
        assert feed_for(loader, 1).replays
        assert feed_for(loader, 1).unknown is None


def test_nodes_over_a_stream_that_stays_at_a_loaded_state_are_read_again(tmp_path):
    """They hide that its next pass begins there; also where two are mixed."""

    def node():
        return nodes.IterableWrapper(of_datasets(Stays))

    def mixed():
        return nodes.Loader(nodes.MultiNodeWeightedSampler({"a": node(), "b": node()}, {"a": 1.0, "b": 1.0}, seed=1))

    cut_anywhere(tmp_path / "one", lambda: nodes.Loader(nodes.Prefetcher(node(), 2)), (4, 9, 14))
    cut_anywhere(tmp_path / "mixed", mixed, (5, 12))
