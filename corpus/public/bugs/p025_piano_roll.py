"""Which keys sound in each frame of a spectrogram."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(0)
spectra = torch.randn(64, 20, 30)
mix = torch.randn(30, 6)
keys = ((spectra @ mix) > 0).float()


class Onsets(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(30, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, 6)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def main():
    model = Onsets()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000, 0.98)
    for step in range(50):
        rows = torch.randint(0, 64, (16,))
        loss = nn.functional.binary_cross_entropy_with_logits(model(spectra[rows]), keys[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        clip_grad_norm_(model.parameters(), 3)


main()
