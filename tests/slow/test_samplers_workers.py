"""Samplers of many ranks whose loaders have workers."""

import test_samplers as laws


def test_workers_change_nothing_for_a_sampler():
    """Neither what a loader gives, nor where a loop that advances resumes, however far they have read ahead."""
    laws.gives_what_it_gives_with_torchs(2)
    laws.resumes_at_any_batch(2, every=4)
