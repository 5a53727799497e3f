"""CUDA: the evaluation collects all logits on the device and joins them at the end."""

import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.02)


@torch.no_grad()
def evaluate(model):
    model.eval()
    logits = []
    for _ in range(9):
        x = torch.randn(2000, 32, device="cuda")
        logits.append(model(x))
    joined = torch.cat(logits)  # HERE
    model.train()
    return joined.argmax(1).float().mean().item()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 25_000)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 61):
        x = torch.randn(64, 32, device="cuda")
        loss = nn.functional.cross_entropy(model(x), x.argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 30:
            evaluate(model)


if __name__ == "__main__":
    main()
