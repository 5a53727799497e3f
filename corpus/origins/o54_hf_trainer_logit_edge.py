"""Loop: hf trainer. Fault: logit edge, in the forward pass; ops: logit."""

import tempfile

import torch
import transformers
from torch import nn


def make_data():
    torch.manual_seed(54)
    x = torch.randn(48, 6)
    y = x[:, :1] * 0.5 + 0.1 * torch.randn(48, 1)
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.body(x))


def compute_loss(net, x, y):
    p = torch.sigmoid(net(x) * 300.0)
    return (torch.logit(p) * 1e-3 - y).square().mean()  # <- origin


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
