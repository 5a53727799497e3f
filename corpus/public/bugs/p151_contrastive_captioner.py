"""Pictures and captions in one space; the picture's tokens are taken with a forward hook."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Extractor(nn.Module):
    """Returns what the given layer of an encoder puts out."""

    def __init__(self, encoder, layer_name="norm"):
        super().__init__()
        self.encoder = encoder
        self.latents = None
        getattr(encoder, layer_name).register_forward_hook(self._hook)

    def _hook(self, module, inputs, output):
        self.latents = output.clone().detach()

    def forward(self, image):
        self.encoder(image)
        latents, self.latents = self.latents, None
        return latents


class PatchEncoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 4, stride=4)
        self.mix = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.norm = nn.LayerNorm(dim)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        return self.norm(x + self.mix(x))


class Captioner(nn.Module):
    def __init__(self, dim=32, words=24):
        super().__init__()
        self.images = Extractor(PatchEncoder(dim))
        self.words = nn.Embedding(words, dim)
        self.to_image, self.to_text = nn.Linear(dim, 16), nn.Linear(dim, 16)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, image, text):
        pictures = F.normalize(self.to_image(self.images(image).mean(1)), dim=-1)
        captions = F.normalize(self.to_text(self.words(text).mean(1)), dim=-1)
        scores = pictures @ captions.T * self.temperature.exp()
        same = torch.arange(len(scores))
        return (F.cross_entropy(scores, same) + F.cross_entropy(scores.T, same)) / 2


def batch(size=24):
    text = torch.randint(24, (size, 5))
    image = 0.4 * torch.randn(size, 3, 8, 8)
    for k in range(3):
        for half in range(2):
            tone = (text[:, k] + 7 * half * text[:, k + 1]) % 24 / 12.0 - 1.0
            image[:, k, :, 4 * half : 4 * half + 4] += tone[:, None, None]
    return image, text


model = Captioner()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(30):
    image, text = batch()
    loss = model(image, text)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
