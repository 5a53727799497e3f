"""Loop: Lightning with manual optimization and two optimizers.

Fault: log of a share of 0 in a divergence written by hand, in the forward pass; ops: log.
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Topics(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.encoder = nn.Linear(12, 5)
        self.decoder = nn.Linear(5, 12)

    def training_step(self, batch, batch_idx):
        words, wanted = batch
        both = self.optimizers()
        share = self.encoder(words).softmax(dim=-1)
        rebuilt = (self.decoder(share) - words).square().mean()
        divergence = (wanted * (wanted.log() - share.log())).sum(dim=-1).mean()  # <- origin
        loss = rebuilt + 0.1 * divergence
        for optimizer in both:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in both:
            optimizer.step()

    def configure_optimizers(self):
        return [
            torch.optim.Adam(self.encoder.parameters(), lr=1e-3),
            torch.optim.SGD(self.decoder.parameters(), lr=1e-2),
        ]


torch.manual_seed(407)
words = torch.rand(40, 12)
wanted = torch.rand(40, 5).softmax(dim=-1)
wanted[18] = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])
trainer = L.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Topics(), DataLoader(TensorDataset(words, wanted), batch_size=8))
