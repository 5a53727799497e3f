"""Loop: Lightning with manual optimization.

Fault: arcsin at its edge, in the backward pass; ops: asin arcsin.
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tilt(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.encode = nn.Linear(6, 3)

    def training_step(self, batch, index):
        pose, tilt = batch
        optimizer = self.optimizers()
        vector = self.encode(pose) * pose.new_tensor([0.0, 0.0, 1.0])
        height = vector[:, 2] / vector.norm(dim=1)
        angle = torch.asin(height)  # <- origin
        loss = (angle - tilt).abs().mean()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    L.seed_everything(108, verbose=False)
    poses = torch.randn(48, 6) * 1.5
    loader = DataLoader(TensorDataset(poses, poses[:, 0]), batch_size=8)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Tilt(), loader)
