"""Loop: hf trainer. Fault: masked row, in the forward pass; ops: softmax."""

import tempfile

import torch
import torch.nn.functional as F
import transformers
from torch import nn


def make_data():
    torch.manual_seed(55)
    x = torch.randn(48, 6)
    y = x[:, :1] * 0.5 + 0.1 * torch.randn(48, 1)
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(6, 8)
        self.key = nn.Linear(6, 8)
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).T
        allowed = x[:, :1] * x[:, :1].T > 0.0
        allowed[0] = False
        scores = scores.masked_fill(~allowed, float("-inf"))
        weights = torch.softmax(scores, dim=-1)  # <- origin
        return self.head(weights @ x)


def compute_loss(net, x, y):
    return F.mse_loss(net(x), y)


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
