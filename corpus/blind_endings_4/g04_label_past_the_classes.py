"""CUDA: labels count from 1, so the last class is past the end; it is rare."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.cuda.set_per_process_memory_fraction(0.02)


class Step:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 7)).cuda()
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def __call__(self, x, y):
        logits = self.model(x)
        loss = self.criterion(logits, y)  # HERE
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss


def main():
    torch.manual_seed(0)
    x = torch.randn(512, 20)
    y = x[:, :6].argmax(1)
    y[322] = 7
    step = Step()
    for epoch in range(3):
        total = 0.0
        for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=32):
            total += step(inputs.cuda(), labels.cuda()).item()
        print(f"epoch {epoch}: {total:.3f}")


if __name__ == "__main__":
    main()
