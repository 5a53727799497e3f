"""A backward hook logs the norm per head; the last batch of the epoch has fewer rows."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROWS = 24


class HeadStatistics:
    def __init__(self, module):
        self.norms = []
        module.register_full_backward_hook(self.note)

    def note(self, module, grad_input, grad_output):
        grouped = grad_output[0].reshape(ROWS, 4, 8)  # HERE
        self.norms.append(grouped.norm(dim=(0, 2)))


def main():
    torch.manual_seed(0)
    x = torch.randn(250, 12)
    loader = DataLoader(TensorDataset(x, x.mean(1, keepdim=True)), batch_size=ROWS)
    heads = nn.Linear(12, 32)
    model = nn.Sequential(heads, nn.ReLU(), nn.Linear(32, 1))
    HeadStatistics(heads)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _epoch in range(3):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
