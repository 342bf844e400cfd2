"""The example for DDP, as it is, by torchrun on two processes. tests/prove kills it, and the one for FSDP2."""

from ddp_examples import started, torchrun


def test_an_example_learns_on_two_processes(tmp_path):
    """Five lines more than a plain script."""
    assert "epoch 4: accuracy 0.9" in started(tmp_path, *torchrun("ddp", 2))
