"""Small trainings in the shape of public example scripts, for `small_models.py`.

Each builds its model, its data and its optimizer, then loops as the example does. `session.watch`
returns what the loop iterates over: the loader itself, or the same under a `Guard`. After each
iteration `session.step_done` says whether to stop.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset


class Session(Protocol):
    """Yields batches, and counts and times the steps."""

    def watch(self, model: Any, optimizer: Any) -> Callable[[Iterable[Any]], Iterable[Any]]: ...
    def epochs(self) -> Iterator[int]: ...
    def step_done(self) -> bool: ...


TRAININGS: dict[str, Callable[[Session], None]] = {}


def training(work: Callable[[Session], None]) -> Callable[[Session], None]:
    TRAININGS[work.__name__.replace("_", " ")] = work
    return work


def loader(*tensors: Tensor, batch: int, shuffle: bool = True) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=True)


def digits(count: int = 512, size: int = 28) -> tuple[Tensor, Tensor]:
    """Noise with a bright block whose position gives the class."""
    labels = torch.randint(10, (count,))
    pictures = 0.2 * torch.rand(count, 1, size, size)
    for picture, label in zip(pictures, labels.tolist(), strict=True):
        row, column = (size // 3) * (label // 4), (size // 4) * (label % 4)
        picture[:, row : row + size // 4, column : column + size // 5] += 0.7
    return pictures, labels


def fit(
    session: Session,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Iterable[Any],
    loss_of: Callable[[nn.Module, Any], Tensor],
    *,
    max_norm: float | None = None,
    scheduler: Any = None,
) -> None:
    """The loop of most examples."""
    watch = session.watch(model, optimizer)
    for _ in session.epochs():
        for batch in watch(data):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            if max_norm is not None:
                clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            if session.step_done():
                return


def classify(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def regress(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


@training
def linear_regression(session: Session) -> None:
    x = torch.randn(512, 8)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fit(session, model, optimizer, loader(x, x.sum(1, keepdim=True), batch=32), regress)


@training
def polynomial_fit(session: Session) -> None:
    """The whole data at each step, as in the tutorials; there is no loader."""
    x = torch.linspace(-3, 3, 2000)
    powers = x[:, None] ** torch.tensor([1.0, 2.0, 3.0])
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    fit(session, model, optimizer, [(powers, x.sin())] * 200, regress)


@training
def tiny_mlp(session: Session) -> None:
    x = torch.randn(256, 6)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    fit(session, model, optimizer, loader(x, x.sum(1, keepdim=True), batch=8), regress)


@training
def logistic_regression(session: Session) -> None:
    x, y = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    fit(session, model, optimizer, loader(x, y, batch=100), classify)


@training
def mnist_mlp(session: Session) -> None:
    x, y = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(session, model, optimizer, loader(x, y, batch=100), classify)


@training
def mnist_cnn(session: Session) -> None:
    x, y = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(32 * 25, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.95)
    fit(session, model, optimizer, loader(x, y, batch=64), classify, scheduler=scheduler)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm(self.convolution(x)))


@training
def small_resnet(session: Session) -> None:
    x, y = digits(256, 16)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), *[Residual(12) for _ in range(4)],
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2000)
    fit(session, model, optimizer, loader(x, y, batch=16), classify, scheduler=scheduler)


@training
def autoencoder(session: Session) -> None:
    x, _ = digits()
    widths = (784, 128, 32, 128, 784)
    layers = [
        part
        for inner, outer in itertools.pairwise(widths)
        for part in (nn.Linear(inner, outer), nn.ReLU())
    ]
    model = nn.Sequential(nn.Flatten(), *layers[:-1], nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
    fit(
        session, model, optimizer, loader(x, batch=64),
        lambda model, batch: F.mse_loss(model(batch[0]), batch[0].flatten(1)),
    )  # fmt: skip


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.mean, self.spread = (
            nn.Linear(784, 200), nn.Linear(200, 20), nn.Linear(200, 20),
        )  # fmt: skip
        self.back, self.out = nn.Linear(20, 200), nn.Linear(200, 784)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.into(x.flatten(1)))
        mean, spread = self.mean(hidden), self.spread(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        return torch.sigmoid(self.out(F.relu(self.back(code)))), mean, spread


def variational_loss(model: nn.Module, batch: Any) -> Tensor:
    rebuilt, mean, spread = model(batch[0])
    error = F.binary_cross_entropy(rebuilt, batch[0].flatten(1), reduction="sum")
    return error - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())


@training
def vae(session: Session) -> None:
    x, _ = digits()
    model = Variational()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(session, model, optimizer, loader(x.clamp(0, 1), batch=64), variational_loss)


@training
def gan(session: Session) -> None:
    """Two optimizers, two or three backward passes per iteration."""
    x, _ = digits(256)
    maker = nn.Sequential(nn.Linear(32, 128), nn.LeakyReLU(0.2), nn.Linear(128, 784), nn.Tanh())
    critic = nn.Sequential(nn.Linear(784, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
    makers = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
    critics = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    watch = session.watch([maker, critic], [makers, critics])
    loss_of = nn.BCEWithLogitsLoss()
    real, fake = torch.ones(32, 1), torch.zeros(32, 1)
    for _ in session.epochs():
        for (pictures,) in watch(loader(x, batch=32)):
            critic.zero_grad()
            loss_of(critic(pictures.flatten(1)), real).backward()
            made = maker(torch.randn(32, 32))
            loss_of(critic(made.detach()), fake).backward()
            critics.step()
            maker.zero_grad()
            loss_of(critic(made), real).backward()
            makers.step()
            if session.step_done():
                return


class CharacterModel(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], vocabulary: int = 40, width: int = 64) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.rnn = kind(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.rnn(self.table(ids))[0])


def next_token(model: nn.Module, batch: Any) -> Tensor:
    ids = batch[0]
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def text(length: int = 33, vocabulary: int = 40) -> Tensor:
    starts = torch.randint(vocabulary, (256, 1))
    return (starts + 3 * torch.arange(length)) % vocabulary


@training
def char_rnn(session: Session) -> None:
    model = CharacterModel(nn.RNN)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(session, model, optimizer, loader(text(), batch=16), next_token, max_norm=1.0)


@training
def lstm_language_model(session: Session) -> None:
    """Truncated backpropagation: the hidden state is carried from batch to batch."""
    model = CharacterModel(nn.LSTM)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    watch = session.watch(model, optimizer)
    state = None
    for _ in session.epochs():
        for (ids,) in watch(loader(text(), batch=16, shuffle=False)):
            optimizer.zero_grad()
            out, state = model.rnn(model.table(ids[:, :-1]), state)
            loss = F.cross_entropy(model.head(out).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            state = tuple(part.detach() for part in state)
            if session.step_done():
                return


@training
def time_sequence_lbfgs(session: Session) -> None:
    """A closure, called several times per step."""
    x = torch.sin(torch.arange(60.0) / 5 + torch.rand(24, 1))
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    watch = session.watch(model, optimizer)
    windows = x.unfold(1, 9, 1).flatten(0, 1)
    for _ in session.epochs():
        for batch in watch([windows]):

            def closure(batch: Tensor = batch) -> Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(model(batch[:, :8]), batch[:, 8:])
                loss.backward()
                return loss

            optimizer.step(closure)
            if session.step_done():
                return


class Transformer(nn.Module):
    def __init__(self, vocabulary: int = 40, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.table(ids) + self.places.weight[:length]
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


@training
def small_transformer(session: Session) -> None:
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: min(1.0, (at + 1) / 20))
    data = loader(text(), batch=12)
    fit(session, model, optimizer, data, next_token, max_norm=1.0, scheduler=scheduler)


@training
def transformer_amp_bf16(session: Session) -> None:
    model = Transformer(layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return next_token(model, batch)

    fit(session, model, optimizer, loader(text(), batch=12), loss_of)


@training
def gradient_accumulation(session: Session) -> None:
    """Four micro-batches per update; counted per update."""
    x, y = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = session.watch(model, optimizer)
    for _ in session.epochs():
        for number, batch in enumerate(watch(loader(x, y, batch=16))):
            (classify(model, batch) / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
                if session.step_done():
                    return


@training
def siamese(session: Session) -> None:
    left, labels = digits(256)
    order = torch.randperm(256)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        distance = F.pairwise_distance(model(batch[0]), model(batch[1]))
        same = batch[2]
        return (same * distance**2 + (1 - same) * F.relu(1.0 - distance) ** 2).mean()

    same = (labels == labels[order]).float()
    fit(session, model, optimizer, loader(left, left[order], same, batch=32), loss_of)


@training
def dqn(session: Session) -> None:
    """A random replay buffer, a target network, gradients clamped by value."""
    policy = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
                           nn.Linear(128, 2))  # fmt: skip
    target = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, amsgrad=True)
    states = torch.randn(1000, 4)
    memory = [(states[at], at % 2, float(states[at].sum()), states[at - 1]) for at in range(1000)]
    watch = session.watch(policy, optimizer)

    def sample() -> Iterator[Any]:
        for _ in range(500):
            state, action, reward, later = zip(*random.sample(memory, 64), strict=True)
            yield (torch.stack(state), torch.tensor(action), torch.tensor(reward),
                   torch.stack(later))  # fmt: skip

    for _ in session.epochs():
        for state, action, reward, later in watch(sample()):
            value = policy(state).gather(1, action[:, None]).squeeze(1)
            with torch.no_grad():
                wanted = reward + 0.9 * target(later).max(1).values
            loss = F.smooth_l1_loss(value, wanted)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_value_(policy.parameters(), 100)
            optimizer.step()
            for old, new in zip(target.parameters(), policy.parameters(), strict=True):
                old.data.lerp_(new.data, 0.005)
            if session.step_done():
                return


@training
def reinforce(session: Session) -> None:
    """No loader and no batch: rewards of an episode, one update after it."""
    policy = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    watch = session.watch(policy, optimizer)
    for _ in session.epochs():
        for state in watch(torch.randn(64, 4).unbind()):
            chances = torch.distributions.Categorical(logits=policy(state.repeat(8, 1)))
            actions = chances.sample()
            rewards = torch.where(actions == (state.sum() > 0).long(), 1.0, -1.0)
            loss = -(chances.log_prob(actions) * (rewards - rewards.mean())).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if session.step_done():
                return


@training
def matrix_factorisation(session: Session) -> None:
    users, items = torch.randint(200, (2000,)), torch.randint(300, (2000,))
    ratings = (users % 5 + items % 3).float()
    model = nn.ModuleList([nn.Embedding(200, 16), nn.Embedding(300, 16)])
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    fit(
        session, model, optimizer, loader(users, items, ratings, batch=64),
        lambda model, batch: F.mse_loss((model[0](batch[0]) * model[1](batch[1])).sum(1), batch[2]),
    )  # fmt: skip


@training
def graph_convolution(session: Session) -> None:
    """One graph, all nodes at each step."""
    x, labels = torch.randn(120, 16), torch.randint(4, (120,))
    links = (torch.rand(120, 120) < 0.05).float() + torch.eye(120)
    links = links / links.sum(1, keepdim=True)
    model = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 4)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        hidden = F.dropout(F.relu(links @ model[0](batch)), 0.5)
        return F.nll_loss(F.log_softmax(links @ model[1](hidden), dim=1), labels)

    fit(session, model, optimizer, [x] * 200, loss_of)


@training
def super_resolution(session: Session) -> None:
    x, _ = digits(64, 32)
    small = F.avg_pool2d(x, 2)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8, 4, 3, padding=1), nn.PixelShuffle(2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(session, model, optimizer, loader(small, x, batch=4), regress)


@training
def word_vectors(session: Session) -> None:
    """Skip-gram with negative samples, as most word2vec examples."""
    words = torch.randint(500, (4000,))
    model = nn.ModuleList([nn.Embedding(500, 32), nn.Embedding(500, 32)])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        centre, near = model[0](batch[0]), model[1](batch[1])
        away = model[1](torch.randint(500, (len(centre), 5)))
        far = (away @ centre[:, :, None]).squeeze(2)
        return -(F.logsigmoid((centre * near).sum(1)) + F.logsigmoid(-far).sum(1)).mean()

    fit(session, model, optimizer, loader(words[:-1], words[1:], batch=64), loss_of)
