"""A small network on handwritten digits, in a chain of jobs: sbatch train.sh

Everything here is plain PyTorch, but for the lines marked with (*).
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast import Every, Run

EPOCHS = 400


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8 * 8, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def main():
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    digits = load_digits()
    dataset = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
    loader = DataLoader(dataset, batch_size=64, shuffle=True)

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    # (*) What the loop itself counts lives in run.vars: a task that goes on in the middle of an epoch goes on counting.
    state = {"net": net, "optimizer": optimizer}
    with Run("runs/train", state, every=Every(epochs=10), vars={"running_loss": 0.0}) as run:
        for epoch in run.epochs(EPOCHS):  # (*)
            for inputs, labels in run.batches(loader):  # (*)
                optimizer.zero_grad()
                loss = F.cross_entropy(net(inputs), labels)
                loss.backward()
                optimizer.step()
                run.vars.running_loss += loss.item()
            print(f"Epoch {epoch + 1} loss: {run.vars.running_loss / len(loader):.3f}", flush=True)
            run.vars.running_loss = 0.0


if __name__ == "__main__":
    main()
