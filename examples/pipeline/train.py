"""A network whose layers are cut over ranks: stages of a pipeline, with torch's own schedules.

    torchrun --nproc-per-node 4 train.py [--schedule 1f1b|interleaved]

Kill it at any time and start it again, also on another number of ranks. Each rank holds some of the
layers; `ModelParts` saves them by their places in the whole network.
"""

import argparse

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.utils.data import DataLoader, TensorDataset

from holdfast import Every, Last, Run
from holdfast.torch import ModelParts

WIDTH, LAYERS = 16, 8


def layer(number: int) -> nn.Module:
    """Layer `number` of the network, with the same first values on every layout."""
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Tanh())


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--schedule", choices=["1f1b", "interleaved"], default="1f1b")
    asked.add_argument("--epochs", type=int, default=3)
    options = asked.parse_args()
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()

    stages_here = 2 if options.schedule == "interleaved" else 1
    count = world * stages_here
    numbers = [rank + world * each for each in range(stages_here)]  # of this rank's stages
    each = LAYERS // count
    layers = {n: layer(n) for stage in numbers for n in range(stage * each, (stage + 1) * each)}
    device = torch.device("cpu")
    stages = [
        PipelineStage(
            nn.Sequential(*(layers[n] for n in range(stage * each, (stage + 1) * each))), stage, count, device
        )
        for stage in numbers
    ]
    kind = ScheduleInterleaved1F1B if options.schedule == "interleaved" else Schedule1F1B
    schedule = kind(stages if stages_here > 1 else stages[0], n_microbatches=2 * world, loss_fn=nn.MSELoss())
    optimizer = torch.optim.AdamW([p for held in layers.values() for p in held.parameters()], lr=1e-2)

    torch.manual_seed(100 + rank)  # dropout; the loader has a seed of its own, equal on all ranks
    data = torch.randn(96, WIDTH, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(
        TensorDataset(data), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(2), drop_last=True
    )
    parts = ModelParts({f"layers.{n}": held for n, held in layers.items()}, optimizer)
    with Run("runs/pipeline", {"parts": parts}, keep=Last(3), every=Every(steps=2)) as run:
        for _ in run.epochs(options.epochs):
            for (x,) in run.batches(loader):
                optimizer.zero_grad()
                losses: list[torch.Tensor] = []
                if rank == 0:
                    schedule.step(x, target=x.roll(1, 1), losses=losses) if count == 1 else schedule.step(x)
                elif rank == world - 1:
                    schedule.step(target=x.roll(1, 1), losses=losses)
                else:
                    schedule.step()
                optimizer.step()
                loss = torch.stack(losses).mean() if losses else torch.zeros(())
                distributed.broadcast(loss, src=world - 1)
                run.log(loss=loss.item())
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
