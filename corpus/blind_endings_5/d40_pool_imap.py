"""Documents are tokenised by a pool of processes with imap; one document is None."""

import multiprocessing

import torch
from torch import nn

DOCUMENTS = [f"document number {i} of the corpus" for i in range(600)]
DOCUMENTS[402] = None


def tokenise(document):
    words = document.split()  # HERE
    return [sum(map(ord, word)) % 64 for word in words]


def main():
    torch.manual_seed(0)
    table = nn.Embedding(64, 8)
    head = nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.05)
    waiting = []
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for ids in pool.imap(tokenise, DOCUMENTS, chunksize=20):  # HERE
            waiting.append(ids)
            if len(waiting) == 12:
                batch, waiting = torch.tensor(waiting), []
                loss = (
                    (head(table(batch).mean(1)) - batch.float().mean(1, keepdim=True) / 64)
                    .pow(2)
                    .mean()
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main()
