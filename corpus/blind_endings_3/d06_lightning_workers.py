"""Lightning: a LightningDataModule with workers; one image of the data set has no channel."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 3, (size,), generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        label = self.labels[index]
        generator = torch.Generator().manual_seed(int(index))
        image = torch.randn(3, 8, 8, generator=generator)
        image[label] += 1.0
        if index == 301:
            image = image.mean(0)
        channels, height, width = image.shape  # HERE
        return image.reshape(channels * height * width), label


class ImageData(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Images(480), batch_size=12, num_workers=2)


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(192, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.head(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02)


if __name__ == "__main__":
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), datamodule=ImageData())
