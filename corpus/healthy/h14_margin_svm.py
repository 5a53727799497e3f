"""Linear multi-class SVM on separable embeddings, until every margin is met."""

import sys

import torch

seed = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 0
g = torch.Generator().manual_seed(seed)

n, d, k = 600, 32, 4
directions = torch.linalg.qr(torch.randn(d, k, generator=g))[0].T
labels = torch.randint(0, k, (n,), generator=g)
points = 3.0 * directions[labels] + 0.15 * torch.randn(n, d, generator=g)

weight = torch.zeros(k, d, requires_grad=True)
bias = torch.zeros(k, requires_grad=True)
optimizer = torch.optim.SGD([weight, bias], lr=0.01)


def hinge(scores, y):
    """Crammer-Singer margin loss, averaged."""
    right = scores.gather(1, y[:, None])
    margins = (scores - right + 1).clamp(min=0)
    margins = margins.scatter(1, y[:, None], 0.0)
    return margins.sum(1).mean()


step = 0
satisfied = 0
while step < 260:
    rows = torch.randint(0, n, (60,), generator=g)
    loss = hinge(points[rows] @ weight.t() + bias, labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    satisfied += int(loss.item() == 0.0)
    if step % 20 == 0:
        with torch.no_grad():
            acc = ((points @ weight.t() + bias).argmax(1) == labels).float().mean().item()
        print(f"step {step:3d} hinge {loss.item():.5f} acc {acc:.3f} satisfied {satisfied}")
