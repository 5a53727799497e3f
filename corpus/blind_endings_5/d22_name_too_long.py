"""The name of the checkpoint spells out the whole configuration; one more option makes it too
long."""

import tempfile

import torch
from torch import nn

CONFIG = {
    f"block_{i}_{what}": value for i in range(6) for what, value in [("width", 64), ("act", "gelu")]
}


def name(config, epoch):
    return f"{epoch:03d}_" + "_".join(f"{key}={value}" for key, value in config.items()) + ".pt"


class Checkpoints:
    def __init__(self, folder):
        self.folder = folder

    def __call__(self, model, config, epoch):
        path = f"{self.folder}/{name(config, epoch)}"
        torch.save(model.state_dict(), path)  # HERE


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    save, config = Checkpoints(tempfile.mkdtemp()), dict(CONFIG)
    for epoch in range(4):
        for _ in range(20):
            x = torch.randn(16, 8)
            loss = nn.functional.mse_loss(model(x), x[:, :1].sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch == 2:
            config["augmentation"] = "random_resized_crop_and_horizontal_flip"
        save(model, config, epoch)


main()
