"""CUDA: a running mean of the loss keeps every graph, and with it all activations."""

import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.02)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, 4096),  # HERE
        nn.ReLU(),  # HERE
        nn.Linear(4096, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mean = 0.0
    for _ in range(400):
        x = torch.randn(1024, 256, device="cuda")  # HERE
        loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))  # HERE
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # HERE
        optimizer.step()
        mean = 0.99 * mean + 0.01 * loss  # HERE
    print(float(mean))


if __name__ == "__main__":
    main()
