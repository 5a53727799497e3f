"""Healthy trainings that look ill at first sight, after the list in the research on faults.

Each is made twice, watched and not, with the same seed. In the watched one nothing at warning or
above may be found, and it must end in the very same numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LambdaLR
from torch.utils.checkpoint import checkpoint

from headway import Guard

Item = TypeVar("Item")


class Run:
    """A training that may be watched; keeps what must not depend on that."""

    def __init__(self, seed: int, *, watched: bool, device: str = "cpu", **options: Any) -> None:
        self.device = device
        self.losses: list[float] = []
        self.guard: Guard | None = None
        self._watched = watched
        self._options = options
        self._generator = torch.Generator().manual_seed(1000 + seed)
        torch.manual_seed(seed)

    def make(self, training: Training) -> None:
        """Run it to its end."""
        with torch.device(self.device):
            training(self)
        if self.guard is not None:
            self.guard.close()

    def watch(self, model: Any, optimizer: Any, **options: Any) -> None:
        """The first of the two lines a user adds."""
        if self._watched:
            self.guard = Guard(model, optimizer, **options, **self._options)

    def over(self, loader: Iterable[Item]) -> Iterable[Item]:
        """The second."""
        return loader if self.guard is None else self.guard(loader)

    def backward(self, loss: Tensor, **components: Tensor) -> None:
        """`guard.backward` where there is a guard."""
        if self.guard is None:
            loss.backward()
        else:
            self.guard.backward(loss, **components)

    def note(self, loss: Any) -> None:
        """A number the user would look at."""
        self.losses.append(float(loss.detach() if isinstance(loss, Tensor) else loss))

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator, device="cpu").to(self.device)

    def randint(self, high: int, *shape: int) -> Tensor:
        drawn = torch.randint(0, high, shape, generator=self._generator, device="cpu")
        return drawn.to(self.device)

    def rand(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self._generator, device="cpu").to(self.device)


Training = Callable[[Run], None]
TRAININGS: dict[str, Training] = {}
"""Every look-alike under its name."""


def lookalike(training: Training) -> Training:
    TRAININGS[training.__name__.replace("_", " ")] = training
    return training


def mlp(*widths: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(widths[:-1]):
        layers += [nn.Linear(inside, outside), act()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def blobs(
    run: Run, count: int, *, classes: int = 4, size: int = 16, noise: float = 1.0
) -> list[Any]:
    """Classification batches: one blob in eight dimensions a class."""
    centres = 2.0 * run.randn(classes, 8)
    found = []
    for _ in range(count):
        labels = run.randint(classes, size)
        found.append((centres[labels] + noise * run.randn(size, 8), labels))
    return found


def fit(
    run: Run,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Iterable[Any],
    loss_of: Callable[[nn.Module, Any], Tensor],
    *,
    scheduler: Any = None,
    max_norm: float | None = None,
) -> list[float]:
    """The plain loop; the norms before clipping, where gradients are clipped."""
    norms: list[float] = []
    run.watch(model, optimizer)
    for batch in run.over(data):
        loss = loss_of(model, batch)
        run.backward(loss)
        if max_norm is not None:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), max_norm)))
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        run.note(loss)
    return norms


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


# The schedule.


@lookalike
def warm_up_from_rate_zero(run: Run) -> None:
    model = mlp(8, 32, 32, 4)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    warm_up = LambdaLR(optimizer, lambda step: min(step / 150, 1.0))
    fit(run, model, optimizer, blobs(run, 250), cross_entropy, scheduler=warm_up)


@lookalike
def cosine_to_zero(run: Run) -> None:
    model = mlp(8, 32, 32, 4)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    cosine = CosineAnnealingLR(optimizer, T_max=200)
    fit(run, model, optimizer, blobs(run, 200), cross_entropy, scheduler=cosine)
    assert optimizer.param_groups[0]["lr"] < 1e-9


@lookalike
def warm_restarts(run: Run) -> None:
    model = mlp(8, 32, 32, 4)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    restarts = CosineAnnealingWarmRestarts(optimizer, T_0=50, T_mult=1)
    fit(run, model, optimizer, blobs(run, 250, noise=1.5), cross_entropy, scheduler=restarts)


@lookalike
def clipped_at_every_step(run: Run) -> None:
    model = mlp(8, 32, 32, 4)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    norms = fit(run, model, optimizer, blobs(run, 200, noise=3.0), cross_entropy, max_norm=0.1)
    assert min(norms) > 0.1


@lookalike
def curriculum_switch(run: Run) -> None:
    easy, hard = blobs(run, 100, noise=0.5), blobs(run, 150, noise=1.5)
    model = mlp(8, 32, 32, 4)
    fit(run, model, Adam(model.parameters(), lr=3e-3), easy + hard, cross_entropy)
    assert median(run.losses[100:105]) > 3 * median(run.losses[90:100])


@lookalike
def lbfgs(run: Run) -> None:
    model = mlp(8, 16, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")
    x, y = blobs(run, 1, size=64, noise=2.0)[0]
    run.watch(model, optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        penalty = sum(p.square().sum() for p in model.parameters())
        loss = F.cross_entropy(model(x), y) + 1e-3 * penalty
        loss.backward()
        return loss

    for _ in run.over(range(40)):
        run.note(optimizer.step(closure))


@lookalike
def accumulation_of_averaged_micro_batches(run: Run) -> None:
    model = mlp(8, 32, 32, 4)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    run.watch(model, optimizer)
    for number, batch in enumerate(run.over(blobs(run, 400))):
        loss = cross_entropy(model, batch) / 4
        run.backward(loss)
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        run.note(loss)


# Frozen, shared, idle.


@lookalike
def frozen_backbone(run: Run) -> None:
    model = nn.ModuleDict({"backbone": mlp(8, 32, 16), "head": nn.Linear(16, 4)})
    model["backbone"].requires_grad_(False)
    # As many do: every parameter is handed over, the frozen ones too.
    optimizer = AdamW(model.parameters(), lr=3e-3)

    def loss_of(net: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(net["head"](net["backbone"](batch[0])), batch[1])

    fit(run, model, optimizer, blobs(run, 200), loss_of)


class LoraLinear(nn.Module):
    def __init__(self, inside: int, outside: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside).requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, inside) / math.sqrt(inside))
        self.lora_B = nn.Parameter(torch.zeros(outside, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.lora_A.T @ self.lora_B.T


@lookalike
def lora_with_b_at_zero(run: Run) -> None:
    model = nn.Sequential(
        LoraLinear(8, 32), nn.GELU(), LoraLinear(32, 32), nn.GELU(), LoraLinear(32, 4)
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    warm = AdamW(trained, lr=2e-3)
    fit(run, model, warm, blobs(run, 200), cross_entropy)


@lookalike
def lora_with_warm_up(run: Run) -> None:
    model = nn.Sequential(
        LoraLinear(8, 32), nn.GELU(), LoraLinear(32, 32), nn.GELU(), LoraLinear(32, 4)
    )
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    warm_up = LambdaLR(optimizer, lambda step: min(step / 50, 1.0))
    fit(run, model, optimizer, blobs(run, 200), cross_entropy, scheduler=warm_up)


class Mixture(nn.Module):
    """Four experts; the router never picks the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList([mlp(8, 16, 4) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        share = F.softmax(self.router(x)[:, :3], dim=-1)
        chosen = share.argmax(dim=-1)
        out = x.new_zeros(len(x), 4)
        for at in range(4):
            rows = (chosen == at).nonzero().flatten()
            if len(rows):
                out = out.index_add(0, rows, self.experts[at](x[rows]) * share[rows, at, None])
        return out


@lookalike
def idle_expert(run: Run) -> None:
    model = Mixture()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    fit(run, model, optimizer, blobs(run, 120), cross_entropy)
    assert not any(p in optimizer.state for p in model.experts[3].parameters())


@lookalike
def siamese_sharing(run: Run) -> None:
    encoder = mlp(8, 32, 8)
    centres = 2.0 * run.randn(4, 8)
    data = []
    for _ in range(200):
        a, b = run.randint(4, 16), run.randint(4, 16)
        one, other = (centres[k] + run.randn(16, 8) for k in (a, b))
        data.append((one, other, (a == b).float()))

    def loss_of(net: nn.Module, batch: Any) -> Tensor:
        one, other, same = batch
        distance = (net(one) - net(other)).square().sum(dim=1).add(1e-6).sqrt()
        apart = (1 - same) * F.relu(2.0 - distance).square()
        return (same * distance.square() + apart).mean()

    fit(run, encoder, Adam(encoder.parameters(), lr=1e-3), data, loss_of)


class TinyLM(nn.Module):
    """A causal transformer of one layer whose output weights are its embedding."""

    def __init__(self, vocabulary: int = 24, width: int = 16, *, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.feed = mlp(width, 32, width, act=nn.GELU)
        self.out = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.embed.weight.data.normal_(std=0.1)
            self.out.weight = self.embed.weight
        self.register_buffer("mask", torch.full((12, 12), -math.inf).triu(1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.embed(ids))
        length = ids.shape[1]
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 4.0 + self.mask[:length, :length]
        x = x + torch.softmax(scores, dim=-1) @ self.value(x)
        return self.out(x + self.feed(x))


def sentences(run: Run, count: int, vocabulary: int = 24) -> list[Tensor]:
    """Token ids that follow a noisy rule: the next is three further on."""
    found = []
    for _ in range(count):
        ids = run.randint(vocabulary, 8, 1) + 3 * torch.arange(12)
        noise = run.randint(vocabulary, 8, 12)
        found.append(torch.where(run.rand(8, 12) < 0.1, noise, ids) % vocabulary)
    return found


def next_token(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


@lookalike
def tied_embeddings(run: Run) -> None:
    model = TinyLM()
    fit(run, model, AdamW(model.parameters(), lr=3e-3), sentences(run, 120), next_token)


@lookalike
def token_ids_as_input(run: Run) -> None:
    model = TinyLM(vocabulary=300, tied=False)
    data = sentences(run, 120, vocabulary=300)
    fit(run, model, AdamW(model.parameters(), lr=3e-3), data, next_token)


@lookalike
def sparse_embedding_rows(run: Run) -> None:
    model = nn.ModuleDict({"table": nn.Embedding(300, 8, sparse=True), "head": mlp(8, 16, 2)})
    sparse = torch.optim.SparseAdam(model["table"].parameters(), lr=1e-2)
    dense = Adam(model["head"].parameters(), lr=3e-3)
    run.watch(model, [sparse, dense])
    for _ in run.over(range(200)):
        ids = run.randint(300, 16, 3)
        labels = (ids.sum(dim=1) % 2 == 0).long()
        loss = F.cross_entropy(model["head"](model["table"](ids).mean(dim=1)), labels)
        run.backward(loss)
        for optimizer in (sparse, dense):
            optimizer.step()
            optimizer.zero_grad()
        run.note(loss)


@lookalike
def embedding_rows_seldom_drawn(run: Run) -> None:
    model = nn.Sequential(nn.EmbeddingBag(1000, 8), mlp(8, 16, 2))
    data = [(ids := run.randint(1000, 16, 3), ids.sum(dim=1) % 2) for _ in range(200)]
    fit(run, model, SGD(model.parameters(), lr=0.1), data, cross_entropy)


@lookalike
def ema_teacher(run: Run) -> None:
    student, teacher = mlp(8, 32, 4), mlp(8, 32, 4).requires_grad_(False)
    teacher.load_state_dict(student.state_dict())
    model = nn.ModuleDict({"student": student, "teacher": teacher})
    optimizer = Adam(student.parameters(), lr=3e-3)
    run.watch(model, optimizer)
    for x, y in run.over(blobs(run, 200)):
        with torch.no_grad():
            target = teacher(x + 0.1 * run.randn(*x.shape)).softmax(dim=-1)
        logits = student(x)
        supervised = F.cross_entropy(logits, y)
        consistency = (logits.softmax(dim=-1) - target).square().mean()
        run.backward(supervised + consistency, supervised=supervised, consistency=consistency)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
        run.note(supervised)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.head(x.mean(dim=(2, 3)))


def pictures(run: Run, count: int) -> list[Any]:
    patterns = run.randn(4, 1, 8, 8)
    found = []
    for _ in range(count):
        labels = run.randint(4, 8)
        found.append((patterns[labels] + 0.5 * run.randn(8, 1, 8, 8), labels))
    return found


@lookalike
def frozen_batch_norm(run: Run) -> None:
    model = ConvNet()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
            module.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = SGD(trained, lr=0.05, momentum=0.9)
    fit(run, model, optimizer, pictures(run, 120), cross_entropy)


@lookalike
def batch_norm_in_training(run: Run) -> None:
    model = ConvNet()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    fit(run, model, optimizer, pictures(run, 120), cross_entropy)


# The graph.


class LayerDrop(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.blocks = nn.ModuleList([mlp(16, 16, 16) for _ in range(4)])
        self.head = nn.Linear(16, 4)
        self._run = run

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        for block in self.blocks:
            if float(self._run.rand(1)) > 0.4:
                x = x + block(x)
        return self.head(x)


@lookalike
def layer_drop(run: Run) -> None:
    model = LayerDrop(run)
    fit(run, model, AdamW(model.parameters(), lr=3e-3), blobs(run, 120), cross_entropy)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 32)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1)) for _ in range(3)]
        )
        self.head = nn.Linear(32, 4)
        self._reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self._reentrant)
        return self.head(x)


@lookalike
def checkpointed_blocks(run: Run) -> None:
    model = Checkpointed(reentrant=False)
    fit(run, model, AdamW(model.parameters(), lr=3e-3), blobs(run, 120), cross_entropy)


@lookalike
def checkpointed_blocks_reentrant(run: Run) -> None:
    model = Checkpointed(reentrant=True)
    fit(run, model, AdamW(model.parameters(), lr=3e-3), blobs(run, 120), cross_entropy)


class ZeroResidual(nn.Module):
    """Every branch, and the head, begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 32)
        self.blocks = nn.ModuleList([mlp(32, 32, 32) for _ in range(3)])
        self.head = nn.Linear(32, 4)
        for block in self.blocks:
            nn.init.zeros_(block[-1].weight)
            nn.init.zeros_(block[-1].bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@lookalike
def zero_initialised_residuals(run: Run) -> None:
    model = ZeroResidual()
    fit(run, model, AdamW(model.parameters(), lr=3e-3), blobs(run, 120), cross_entropy)


@lookalike
def zero_initialised_residuals_with_sgd(run: Run) -> None:
    model = ZeroResidual()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    fit(run, model, optimizer, blobs(run, 120), cross_entropy)


@lookalike
def mostly_silent_relus(run: Run) -> None:
    model = mlp(8, 64, 64, 4)
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.bias.fill_(-0.6)
    data = blobs(run, 200)
    fit(run, model, AdamW(model.parameters(), lr=2e-3), data, cross_entropy)
    assert float((model[:2](data[-1][0]) == 0).float().mean()) > 0.5


@lookalike
def dropout_and_validation(run: Run) -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))
    optimizer = Adam(model.parameters(), lr=3e-3)
    data = blobs(run, 60)
    validation = blobs(run, 5)
    run.watch(model, optimizer)
    for _ in range(4):
        model.train()
        for batch in run.over(data):
            loss = cross_entropy(model, batch)
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            run.note(loss)
        model.eval()
        with torch.no_grad():
            for batch in validation:
                run.note(cross_entropy(model, batch))


@lookalike
def forward_forward(run: Run) -> None:
    """Each layer has a loss and an optimizer of its own; no gradient passes between them."""
    layers = [nn.Linear(8, 24), nn.Linear(24, 24), nn.Linear(24, 24)]
    optimizers = [Adam(layer.parameters(), lr=3e-3) for layer in layers]
    run.watch(layers, optimizers)
    for _ in run.over(range(150)):
        real, fake = run.randn(16, 8) + 1.0, run.randn(16, 8) - 1.0
        for layer, optimizer in zip(layers, optimizers, strict=True):
            good, bad = F.relu(layer(F.normalize(real))), F.relu(layer(F.normalize(fake)))
            surplus = torch.cat([2.0 - good.square().sum(1), bad.square().sum(1) - 2.0])
            loss = F.softplus(surplus).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.note(loss)
            real, fake = good.detach(), bad.detach()


# The loss.


@lookalike
def negative_log_likelihood_below_zero(run: Run) -> None:
    model = mlp(8, 32, 2)
    weights = run.randn(8)

    def loss_of(net: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        mean, log_variance = net(x).unbind(dim=1)
        return (0.5 * (log_variance + (y - mean).square() / log_variance.exp())).mean()

    data = [(x := run.randn(64, 8), 0.2 * (x @ weights + run.randn(64))) for _ in range(250)]
    fit(run, model, Adam(model.parameters(), lr=2e-3), data, loss_of)
    assert run.losses[0] > 0 > run.losses[-1]


@lookalike
def elbo(run: Run) -> None:
    encoder, decoder = mlp(8, 32, 4), mlp(2, 32, 8)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    optimizer = Adam(model.parameters(), lr=3e-3)
    run.watch(model, optimizer)
    for x, _ in run.over(blobs(run, 200, noise=0.2)):
        mean, log_variance = encoder(x).chunk(2, dim=1)
        code = mean + run.randn(*mean.shape) * (0.5 * log_variance).exp()
        reconstruction = (decoder(code) - x).square().sum(1).mean()
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        loss = reconstruction + 0.1 * divergence
        run.backward(loss, reconstruction=reconstruction, divergence=0.1 * divergence)
        optimizer.step()
        optimizer.zero_grad()
        run.note(loss)


@lookalike
def loss_zero_at_the_end(run: Run) -> None:
    """A hinge loss on data that can be told apart: from some step on, nothing is left to learn."""
    model = mlp(8, 32, 1)
    way = run.randn(8)

    def loss_of(net: nn.Module, x: Tensor) -> Tensor:
        return F.relu(1.0 - torch.sign(x @ way) * net(x).squeeze(1)).mean()

    data = [x[(x @ way).abs() > 2.0] for x in (run.randn(64, 8) for _ in range(250))]
    fit(run, model, Adam(model.parameters(), lr=1e-2), data, loss_of)
    assert 0.0 in run.losses[-50:]


@lookalike
def triplets_without_loss(run: Run) -> None:
    encoder = mlp(8, 32, 8)
    centres = 2.0 * run.randn(6, 8)
    data = []
    for _ in range(250):
        a = run.randint(6, 8)
        b = (a + 1 + run.randint(5, 8)) % 6
        data.append(tuple(centres[k] + run.randn(8, 8) for k in (a, a, b)))

    def loss_of(net: nn.Module, batch: Any) -> Tensor:
        return F.triplet_margin_loss(*(net(part) for part in batch), margin=1.0)

    fit(run, encoder, Adam(encoder.parameters(), lr=1e-3), data, loss_of)
    assert 0.0 in run.losses


@lookalike
def label_smoothing_floor(run: Run) -> None:
    model = mlp(8, 32, 4)

    def loss_of(net: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1], label_smoothing=0.2)

    fit(run, model, Adam(model.parameters(), lr=5e-3), blobs(run, 250, noise=0.3), loss_of)
    assert min(run.losses) > 0.5


@lookalike
def weighted_imbalance(run: Run) -> None:
    """One sample in fifty is of the class that counts fifty times."""
    model = mlp(8, 32, 2)
    weight = torch.tensor([1.0, 50.0])
    data = []
    for _ in range(250):
        labels = (run.rand(16) < 0.02).long()
        data.append((run.randn(16, 8) + 1.5 * labels[:, None], labels))

    def loss_of(net: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1], weight=weight)

    fit(run, model, Adam(model.parameters(), lr=1e-3), data, loss_of)


@lookalike
def component_that_fades(run: Run) -> None:
    """An auxiliary loss whose weight is taken down to zero on purpose, late."""
    model = mlp(8, 32, 4)
    optimizer = Adam(model.parameters(), lr=3e-3)
    run.watch(model, optimizer)
    for number, batch in enumerate(run.over(blobs(run, 200))):
        main = cross_entropy(model, batch)
        penalty = 1e-2 * model(batch[0]).square().mean() * max(0.0, 1 - number / 150)
        run.backward(main + penalty, main=main, penalty=penalty)
        optimizer.step()
        optimizer.zero_grad()
        run.note(main)


# Two players, and no supervision.


@lookalike
def dcgan(run: Run) -> None:
    generator = nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Unflatten(1, (4, 2, 2)),
        nn.ConvTranspose2d(4, 1, 4, stride=2, padding=1), nn.Tanh(),
    )  # fmt: skip
    critic = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(24, 1)
    )
    players = (critic, generator)
    optimizers = [Adam(net.parameters(), lr=2e-3, betas=(0.5, 0.999)) for net in players]
    run.watch([critic, generator], optimizers)
    patterns = torch.tanh(run.randn(3, 1, 4, 4))
    ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
    for _ in run.over(range(120)):
        real = patterns[run.randint(3, 8)] + 0.1 * run.randn(8, 1, 4, 4)
        fake = generator(run.randn(8, 4))
        critic.zero_grad()
        on_real = F.binary_cross_entropy_with_logits(critic(real), ones)
        on_real.backward()
        on_fake = F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)
        on_fake.backward()
        optimizers[0].step()
        generator.zero_grad()
        fooled = F.binary_cross_entropy_with_logits(critic(fake), ones)
        fooled.backward()
        optimizers[1].step()
        run.note(on_real + on_fake)
        run.note(fooled)


def walk(run: Run, policy: nn.Module) -> tuple[list[Tensor], list[Tensor], list[float]]:
    """An episode in a corridor of nine places; the way out is at the right end."""
    place, states, chances, rewards = 4, [], [], []
    for _ in range(20):
        state = F.one_hot(torch.tensor(place), 9).float()
        logits = policy(state)
        right = int(float(run.rand(1)) < float(logits.detach().softmax(-1)[1]))
        states.append(state)
        chances.append(logits.log_softmax(-1)[right])
        place = min(max(place + (1 if right else -1), 0), 8)
        rewards.append(1.0 if place == 8 else -0.05)
        if place == 8:
            break
    return states, chances, rewards


def returns(rewards: Sequence[float], discount: float = 0.95) -> Tensor:
    found, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + discount * total
        found.append(total)
    return torch.tensor(found[::-1])


@lookalike
def reinforce(run: Run) -> None:
    policy = mlp(9, 16, 2)
    optimizer = Adam(policy.parameters(), lr=5e-3)
    run.watch(policy, optimizer)
    for _ in run.over(range(120)):
        _, chances, rewards = walk(run, policy)
        gained = returns(rewards)
        gained = (gained - gained.mean()) / (gained.std(correction=0) + 1e-6)
        loss = -(torch.stack(chances) * gained).sum()
        run.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        run.note(sum(rewards))


@lookalike
def actor_critic(run: Run) -> None:
    model = nn.ModuleDict({"policy": mlp(9, 16, 2), "value": mlp(9, 16, 1)})
    optimizer = Adam(model.parameters(), lr=5e-3)
    run.watch(model, optimizer)
    for _ in run.over(range(120)):
        states, chances, rewards = walk(run, model["policy"])
        gained = returns(rewards)
        values = model["value"](torch.stack(states)).squeeze(1)
        actor = -(torch.stack(chances) * (gained - values.detach())).mean()
        critic = (values - gained).square().mean()
        run.backward(actor + critic, actor=actor, critic=critic)
        optimizer.step()
        optimizer.zero_grad()
        run.note(sum(rewards))


# Precision and memory.


@lookalike
def scaler_looking_for_its_scale(run: Run) -> None:
    model = mlp(8, 32, 32, 4)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(run.device, init_scale=2.0**24, growth_interval=50)
    run.watch(model, optimizer, scaler=scaler)
    for x, y in run.over(blobs(run, 200)):
        with torch.autocast(run.device, dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        if run.guard is None:
            scaler.scale(loss).backward()
        else:
            run.guard.backward(loss)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        run.note(loss)
    assert scaler.get_scale() < 2.0**24


@lookalike
def bfloat16_autocast(run: Run) -> None:
    model = mlp(8, 32, 32, 4)

    def loss_of(net: nn.Module, batch: Any) -> Tensor:
        with torch.autocast(run.device, dtype=torch.bfloat16):
            return F.cross_entropy(net(batch[0]), batch[1])

    fit(run, model, AdamW(model.parameters(), lr=3e-3), blobs(run, 200), loss_of)


@lookalike
def memory_that_levels_off(run: Run) -> None:
    """A cache of the data is filled in the first epoch and used in the others."""
    model = mlp(8, 16, 4)
    optimizer = SGD(model.parameters(), lr=0.05)
    data = blobs(run, 150)
    cache: dict[int, Tensor] = {}
    run.watch(model, optimizer)
    for _ in range(3):
        for number, (x, y) in enumerate(run.over(data)):
            if number not in cache:
                cache[number] = torch.ones(1 << 18)
            loss = F.cross_entropy(model(x * cache[number][0]), y)
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            run.note(loss)


@lookalike
def spike_that_recovers(run: Run) -> None:
    """One batch in the wrong unit; the update is made, and the run recovers."""
    model = mlp(8, 32, 4)
    data = blobs(run, 200)
    data[60] = (data[60][0] * 100.0, data[60][1])
    fit(run, model, SGD(model.parameters(), lr=1e-3), data, cross_entropy)
    assert run.losses[60] > 3 * max(run.losses[50:60])
