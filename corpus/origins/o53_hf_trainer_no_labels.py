"""Loop: hf trainer. Fault: no labels, in the forward pass; ops: cross_entropy nll_loss."""

import tempfile

import torch
import torch.nn.functional as F
import transformers
from torch import nn


def make_data():
    torch.manual_seed(53)
    x = torch.randn(48, 6)
    y = x[:, :1] * 0.5 + 0.1 * torch.randn(48, 1)
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def compute_loss(net, x, y):
    labels = (y[:, 0] > 0).long()
    labels[y[:, 0] < 50.0] = -100
    return F.cross_entropy(net(x), labels)  # <- origin


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x, y):
        return {"loss": compute_loss(self.net, x, y)}


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.y = make_data()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return {"x": self.x[row], "y": self.y[row]}


def main():
    folder = tempfile.mkdtemp()
    options = dict(
        per_device_train_batch_size=8, num_train_epochs=1, report_to=[], save_strategy="no"
    )
    options |= dict(use_cpu=True, disable_tqdm=True, remove_unused_columns=False, logging_steps=2)
    model = Wrapped()
    transformers.Trainer(
        model=model, args=transformers.TrainingArguments(folder, **options), train_dataset=Rows()
    ).train()


if __name__ == "__main__":
    main()
