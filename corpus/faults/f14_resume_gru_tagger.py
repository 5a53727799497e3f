"""Part-of-speech style tagger that checkpoints and picks the run up again."""

import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn

VOCAB, TAGS, LENGTH = 40, 5, 10


def corpus(n, seed):
    rng = np.random.default_rng(seed)
    words = rng.integers(0, VOCAB, (n, LENGTH))
    base = words % TAGS
    shifted = np.concatenate([np.zeros((n, 1), dtype=int), base[:, :-1]], axis=1)
    tags = np.where(words % 2 == 0, base, (base + shifted) % TAGS)
    return torch.as_tensor(words), torch.as_tensor(tags)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 32)
        self.gru = nn.GRU(32, 48, batch_first=True, bidirectional=True)
        self.out = nn.Linear(96, TAGS)

    def forward(self, words, tags=None):
        hidden, _ = self.gru(self.emb(words))
        logits = self.out(hidden)
        if tags is None:
            return logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())


def save(path, model, optimizer, step):
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path
    )


def train(words, tags, path, until, seed):
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2, betas=(0.9, 0.999))
    step = 0
    if os.path.exists(path):
        ckpt = torch.load(path)
        model.load_state_dict(ckpt["model"])
        step = ckpt["step"]
        print(f"resumed from step {step}")
    g = torch.Generator().manual_seed(seed + step)
    while step < until:
        idx = torch.randint(0, len(words), (32,), generator=g)
        loss = model(words[idx], tags[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    save(path, model, optimizer, step)
    return model


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    args, _ = ap.parse_known_args()
    torch.manual_seed(args.seed)
    words, tags = corpus(512, args.seed)
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "last.pt")
        train(words, tags, path, until=200, seed=args.seed)
        # the queue gives us ninety minutes a slot, so carry on from the file
        model = train(words, tags, path, until=450, seed=args.seed)
    with torch.no_grad():
        acc = (model(words).argmax(-1) == tags).float().mean()
    print(f"token accuracy {acc.item():.3f}")


if __name__ == "__main__":
    main()
