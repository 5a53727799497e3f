"""Two loaders in zip; the second data set raises in its worker."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Labels(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        text = "n/a" if index == 177 else "1.5"
        return torch.tensor([float(text)])  # HERE


torch.manual_seed(0)
inputs = DataLoader(TensorDataset(torch.randn(320, 8)), batch_size=16)
labels = DataLoader(Labels(), batch_size=16, num_workers=2)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for (x,), y in zip(inputs, labels):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
