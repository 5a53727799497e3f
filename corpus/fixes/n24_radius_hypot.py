import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(23)
x = torch.randn(64, 8)
y = torch.randn(64, 4)
x[39] = 0.0
model = nn.Linear(8, 4, bias=False)


def compute_loss(model, a, b):
    v = model(a)
    radius = torch.hypot(v[:, 0], v[:, 1])
    loss = (radius - 1).square().mean()
    return loss


def main():
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=False, num_workers=0)
    for epoch in range(2):
        running = 0.0
        for a, b in loader:
            opt.zero_grad()
            loss = compute_loss(model, a, b)
            loss.backward()
            opt.step()
            running += loss.item()
        print(f"epoch {epoch}: {running / len(loader):.4f}")


if __name__ == "__main__":
    main()
