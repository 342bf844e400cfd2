"""A run of a model whose weights do not lie in C order."""

import pytest
import torch

from holdfast import Every, Run
from kept import bits


class Model(torch.nn.Module):
    table: torch.Tensor

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(32, 64, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.register_buffer("table", torch.randn(300, 200).t())

    def forward(self, x):
        return self.conv(x).mean() + self.table.sum()


def trained(path, stop=None, **options):
    torch.manual_seed(3)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(torch.randn(8, 32, 5, 5), batch_size=1, num_workers=2)
    with Run(path, {"model": model, "optimizer": optimizer}, every=Every(steps=1), **options) as run:
        for _ in run.epochs(1):
            for x in run.batches(loader):
                optimizer.zero_grad()
                model(x).backward()
                optimizer.step()
                if stop is not None and run.step == stop:
                    raise KeyboardInterrupt
    return [model.state_dict(), [each["exp_avg"] for each in optimizer.state_dict()["state"].values()]]


@pytest.mark.parametrize("background", [True, False])
def test_a_model_in_channels_last_resumes_bit_for_bit_beside_forked_workers(tmp_path, background):
    """Parameters, moments and a transposed buffer, saved while the loader's processes come and go."""
    expected = trained(tmp_path / "whole", background=background)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", stop=5, background=background)
    assert bits(expected) == bits(trained(tmp_path / "cut", background=background))
