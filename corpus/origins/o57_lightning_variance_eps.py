"""Loop: lightning. Fault: variance eps, in the forward pass; ops: rsqrt mul."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    torch.manual_seed(57)
    x = torch.randn(48, 6)
    y = x[:, :1] * 0.5 + 0.1 * torch.randn(48, 1)
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        h = self.body(x)
        flat = h.mean(dim=1, keepdim=True).expand_as(h)
        centred = flat - flat.mean(dim=1, keepdim=True)
        h = h + centred * flat.var(dim=1, keepdim=True).rsqrt()  # <- origin
        return self.head(h)


def compute_loss(net, x, y):
    return F.mse_loss(net(x), y)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, index):
        return compute_loss(self.net, *batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    x, y = make_data()
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader)


if __name__ == "__main__":
    main()
