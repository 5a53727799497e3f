"""Embeddings of speakers from frames of speech, compared with the centre of each speaker."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
SPEAKERS, UTTERANCES = 6, 5


class SpeechEmbedder(nn.Module):
    def __init__(self, mels=12, hidden=32, proj=16):
        super().__init__()
        self.lstm = nn.LSTM(mels, hidden, batch_first=True)
        self.projection = nn.Linear(hidden, proj)

    def forward(self, x):
        x, _ = self.lstm(x)
        x = self.projection(x[:, -1])
        return x / torch.norm(x)


class SimilarityLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(10.0))
        self.b = nn.Parameter(torch.tensor(-5.0))

    def forward(self, embeddings):
        centroids = embeddings.mean(1)
        rows = embeddings.flatten(0, 1)
        cosine = F.cosine_similarity(rows.unsqueeze(1), centroids.unsqueeze(0), dim=2)
        speaker = torch.arange(SPEAKERS).repeat_interleave(UTTERANCES)
        return F.cross_entropy(self.w * cosine + self.b, speaker)


embedder, ge2e = SpeechEmbedder(), SimilarityLoss()
optimizer = torch.optim.SGD([*embedder.parameters(), *ge2e.parameters()], lr=0.05)
for step in range(40):
    voice = torch.randn(SPEAKERS, 1, 1, 12)
    frames = voice + 0.7 * torch.randn(SPEAKERS, UTTERANCES, 10, 12)
    embeddings = embedder(frames.flatten(0, 1)).unflatten(0, (SPEAKERS, UTTERANCES))
    loss = ge2e(embeddings)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
