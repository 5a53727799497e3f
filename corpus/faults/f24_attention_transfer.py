"""Knowledge distillation with attention transfer: a thin student follows a wide teacher."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class SmallCNN(nn.Module):
    def __init__(self, width, n_classes=4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.stage = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU())
        self.fc = nn.Linear(2 * width, n_classes)

    def forward(self, x):
        return self.fc(self.stage(self.stem(x)).mean(dim=(2, 3)))


class FeatureTap:
    """Keeps what a layer put out in the last forward pass."""

    def __init__(self, model, names):
        self.store = {}
        for name in names:
            model.get_submodule(name).register_forward_hook(self._hook(name))

    def _hook(self, name):
        def keep(module, inputs, output):
            self.store[name] = output.detach()

        return keep

    def __getitem__(self, name):
        return self.store[name]


def attention_map(feature):
    return F.normalize(feature.pow(2).mean(1).flatten(1), dim=1)


def blobs(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    img = 0.5 * rng.standard_normal((n, 1, 12, 12))
    for i, c in enumerate(y):
        r, q = 6 * (c // 2) + rng.integers(0, 3), 6 * (c % 2) + rng.integers(0, 3)
        img[i, 0, r : r + 3, q : q + 3] += 1.5 if c % 3 else -1.5
    return torch.tensor(img, dtype=torch.float32), torch.tensor(y)


def train(model, x, y, epochs, teacher=None, lr=3e-3, beta=50.0, temperature=3.0):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    layers = ["stem", "stage"]
    if teacher is not None:
        s_tap, t_tap = FeatureTap(model, layers), FeatureTap(teacher, layers)
    for epoch in range(epochs):
        log = {"ce": 0.0, "kd": 0.0, "at": 0.0}
        batches = torch.randperm(len(x)).split(64)
        for idx in batches:
            logits = model(x[idx])
            losses = {"ce": F.cross_entropy(logits, y[idx])}
            if teacher is not None:
                with torch.no_grad():
                    soft = F.softmax(teacher(x[idx]) / temperature, dim=1)
                log_p = F.log_softmax(logits / temperature, dim=1)
                losses["kd"] = F.kl_div(log_p, soft, reduction="batchmean") * temperature**2
                gap = [attention_map(s_tap[k]) - attention_map(t_tap[k]) for k in layers]
                losses["at"] = beta * sum(g.pow(2).mean() for g in gap)
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for k, v in losses.items():
                log[k] += v.item() / len(batches)
        print(f"epoch {epoch}: " + "  ".join(f"{k} {v:.4f}" for k, v in log.items()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args, _ = parser.parse_known_args()
    torch.manual_seed(args.seed)
    x, y = blobs(768, args.seed)
    teacher, student = SmallCNN(24), SmallCNN(6)
    print("teacher")
    train(teacher, x, y, epochs=3)
    teacher.eval().requires_grad_(False)
    print("student")
    train(student, x, y, epochs=8, teacher=teacher)


if __name__ == "__main__":
    main()
