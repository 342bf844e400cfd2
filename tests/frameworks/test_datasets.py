"""Streams of Hugging Face's datasets, killed and resumed."""

import pytest
from datasets import Dataset
from test_streams import cut_anywhere

from holdfast.data.feed import feed_for
from holdfast.data.replay import ReplayFeed


@pytest.mark.parametrize("shuffles", [False, True])
def test_streams_of_hugging_face_lose_no_sample(tmp_path, shuffles):
    """Their buffer of a shuffle is not in their state: such a stream is read again."""

    def make():
        stream = Dataset.from_dict({"a": [*range(12)]}).to_iterable_dataset(num_shards=2)
        return stream.shuffle(seed=3, buffer_size=6) if shuffles else stream

    assert isinstance(feed_for(make(), 1), ReplayFeed) == shuffles
    seen = cut_anywhere(tmp_path, make, (5, 13, 20, 30))
    assert [sorted(seen[at : at + 12]) for at in (0, 12, 24)] == [[*range(12)]] * 3
