import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
x = torch.randn(64, 8)
y = torch.randn(64, 4)
x[50] = 0.0
model = nn.Linear(8, 8, bias=False)
nn.init.eye_(model.weight)


def compute_loss(model, a, b):
    h = model(a)
    ratio = torch.where(h != 0, 1.0 / h, torch.zeros_like(h)).clamp(-5, 5)
    loss = (ratio[:, :4] - b).square().mean()
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
