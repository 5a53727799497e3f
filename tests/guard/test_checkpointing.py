"""Activation checkpointing from outside: the same numbers to the last bit, in less memory."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import Attention, rng_state
from support.torch_versions import CHECKPOINTS_COMPILED, SHARDS_ON_CPU
from support.trainings import assert_same, state_of
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils.parametrizations import spectral_norm

import headway
from headway import Guard, checkpoint_activations
from headway.errors import UsageError
from headway.guard.memory.activation_checkpointing import ActivationCheckpointing

STEPS = 6


class Block(nn.Module):
    """A residual block with everything that a second forward could get wrong."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, 64), nn.BatchNorm1d(64), nn.GELU())
        self.outer = nn.Sequential(nn.Dropout(0.3), spectral_norm(nn.Linear(64, width)))

    def forward(self, x: Tensor, *, gain: float = 1.0) -> Tensor:
        return x + gain * self.outer(self.inner(x))


class Tower(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(depth)])
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, gain=0.5)
        return self.head(x)


Switch = Callable[[nn.Module], AbstractContextManager[Any]]
SWITCHES: dict[str, Switch] = {
    "by class": lambda model: checkpoint_activations(model, classes=Block),
    "by name": lambda model: checkpoint_activations(model, classes=("Block",)),
    "by path": lambda model: checkpoint_activations(model, paths=["blocks.*"]),
    "by both": lambda model: checkpoint_activations(model, classes="Block", paths="head"),
    "the whole": lambda model: checkpoint_activations(model, classes=Tower),
}


def tower() -> Tower:
    torch.manual_seed(5)
    return Tower()


def features(count: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 16, generator=generator), torch.randint(0, 3, (8,), generator=generator))
        for _ in range(count)
    ]


def trained(
    model: nn.Module,
    data: list[tuple[Tensor, Tensor]],
    switch: Switch = lambda _: nullcontext(),
    *,
    guarded: bool = False,
    precision: torch.dtype | None = None,
    accumulate: int = 1,
) -> dict[str, Any]:
    """Everything that must be the same with and without."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    losses, gradients = [], []
    torch.manual_seed(9)
    with switch(model):
        guard = Guard(model, optimizer) if guarded else None
        for number, (x, y) in enumerate(guard(data) if guard else data, start=1):
            with torch.autocast("cpu", dtype=precision, enabled=precision is not None):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            losses.append(loss.detach())
            gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
        if guard:
            guard.close()
            assert not guard.findings
    return {
        "losses": losses,
        "gradients": gradients,
        "state": state_of(model, optimizer),
        "rng": rng_state()[0],
    }


@pytest.mark.parametrize("guarded", [False, True], ids=["alone", "guarded"])
@pytest.mark.parametrize("name", SWITCHES)
def test_losses_gradients_and_buffers_are_the_same_bit_for_bit(name: str, *, guarded: bool) -> None:
    plain = trained(tower(), features())
    assert_same(plain, trained(tower(), features(), SWITCHES[name], guarded=guarded))


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_the_same_under_autocast(precision: torch.dtype) -> None:
    plain = trained(tower(), features(), precision=precision)
    assert_same(plain, trained(tower(), features(), SWITCHES["by class"], precision=precision))


def test_the_same_with_two_micro_batches_a_step() -> None:
    plain = trained(tower(), features(), accumulate=2)
    assert_same(plain, trained(tower(), features(), SWITCHES["by class"], accumulate=2))


def test_torchs_own_transformer_layers() -> None:
    def model() -> nn.Module:
        torch.manual_seed(2)
        return Attention()

    generator = torch.Generator().manual_seed(3)
    data = [
        (torch.randint(0, 11, (6, 5), generator=generator), torch.randint(0, 3, (6,)))
        for _ in range(STEPS)
    ]
    switched = trained(
        model(), data, lambda m: checkpoint_activations(m, classes=nn.TransformerEncoderLayer)
    )
    assert_same(trained(model(), data), switched)


def test_a_second_backward_through_the_same_graph() -> None:
    """`retain_graph`: the second recomputation starts from the same buffers as the first."""
    x, _ = features(1)[0]
    found = []
    for switch in (SWITCHES["by class"], lambda _: nullcontext()):
        model = tower()
        with switch(model):
            torch.manual_seed(9)
            loss = model(x).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
        found.append([p.grad for p in model.parameters()] + list(model.buffers()))
    assert_same(found[0], found[1])


# Memory.


class Saved:
    """The bytes that autograd keeps for backward: what is alive, and the most there was."""

    def __init__(self) -> None:
        self.alive = self.most = 0
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda held: held.tensor)

    def __enter__(self) -> Saved:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> Held:
        return Held(self, tensor)


class Held:
    def __init__(self, saved: Saved, tensor: Tensor) -> None:
        self.saved, self.tensor = saved, tensor
        saved.alive += tensor.nbytes
        saved.most = max(saved.most, saved.alive)

    def __del__(self) -> None:
        self.saved.alive -= self.tensor.nbytes


def saved_bytes(model: nn.Module) -> int:
    """At the end of the forward pass, when autograd holds the most."""
    x = torch.randn(256, 16)
    with Saved() as saved:
        loss = model(x).square().mean()
        loss.backward()
    return saved.most


def test_less_is_kept_for_backward() -> None:
    model = tower()
    plain = saved_bytes(model)
    with checkpoint_activations(model, classes=Block):
        assert saved_bytes(model) < plain / 3
    assert saved_bytes(model) == plain


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_peak_memory_falls_on_the_device_and_the_loss_stays() -> None:
    def peak(switch: Switch) -> tuple[int, list[float]]:
        torch.manual_seed(4)
        layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True)
        model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        x = torch.randn(16, 512, 512, device="cuda")
        losses = []
        with switch(model), Guard(model, optimizer) as guard:
            torch.cuda.reset_peak_memory_stats()
            for _ in guard(range(3)):
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return torch.cuda.max_memory_allocated(), losses

    most, losses = peak(lambda _: nullcontext())
    less, same = peak(lambda m: checkpoint_activations(m, classes=nn.TransformerEncoderLayer))
    assert same == pytest.approx(losses, rel=1e-5)  # CUDA's kernels differ in the last bit
    assert less < most / 2


# When it is not needed.


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.relu(self.linear(x))


def test_the_forward_is_repeated_in_training_only() -> None:
    model = nn.Sequential(Counting(), nn.Linear(4, 1))
    x = torch.randn(2, 4)
    checkpoint_activations(model, classes=Counting)
    model(x).sum().backward()
    assert model[0].calls == 2
    model.eval()
    model(x).sum().backward()
    assert model[0].calls == 3
    model.train()
    with torch.no_grad():
        model(x)
    assert model[0].calls == 4


# On and off.


def test_the_names_of_the_state_are_the_users() -> None:
    model = tower()
    before = model.state_dict()
    with checkpoint_activations(model, classes=Block):
        assert list(model.state_dict()) == list(before)
        assert [name for name, _ in model.named_modules()] == [
            name for name, _ in tower().named_modules()
        ]
        model.load_state_dict(before)


def test_off_leaves_no_trace() -> None:
    model = tower()
    switched = checkpoint_activations(model, paths="blocks.*")
    assert switched.paths == ("blocks.0", "blocks.1", "blocks.2", "blocks.3")
    assert "forward" in vars(model.blocks[0])
    switched.off()
    switched.off()
    assert not any("forward" in vars(module) for module in model.modules())
    assert isinstance(checkpoint_activations(model, paths="blocks.*"), ActivationCheckpointing)


def test_a_forward_covered_by_somebody_else_stays_covered() -> None:
    """Before ours and after it, as other libraries do it."""
    model = nn.Sequential(Counting(), nn.Linear(4, 1))
    first, said = model[0].forward, []

    def before(x: Tensor) -> Tensor:
        said.append("before")
        return first(x)

    model[0].forward = before
    switched = checkpoint_activations(model, classes=Counting)
    ours = model[0].forward

    def after(x: Tensor) -> Tensor:
        said.append("after")
        return ours(x)

    model[0].forward = after
    switched.off()
    model(torch.randn(2, 4)).sum().backward()
    assert said == ["after", "before"]
    assert model[0].calls == 1
    assert model[0].forward is after


def test_of_nested_matches_only_the_outermost_gets_it() -> None:
    model = nn.Sequential(Counting(), nn.Sequential(nn.Sequential(Counting()), Counting()))
    switched = checkpoint_activations(model, paths=["1.0", "*"], classes=Counting)
    assert switched.paths == ("0", "1")
    model(torch.randn(2, 4)).sum().backward()
    assert [module.calls for module in model.modules() if isinstance(module, Counting)] == [2, 2, 2]


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_the_model_computes_with_its_own_weights(how: Callable[[Any], Any]) -> None:
    model = nn.Sequential(Counting(), nn.Linear(4, 1))
    checkpoint_activations(model, classes=Counting)
    twin = how(model)
    with torch.no_grad():
        for parameter in twin[0].parameters():
            parameter.zero_()
    twin(torch.randn(2, 4)).sum().backward()
    assert (twin[0].calls, model[0].calls) == (2, 0)
    assert all(p.grad is None for p in model.parameters())


# Mistakes.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs to know which modules"),
        ({"classes": "Blok"}, "matches 'Blok'; available classes: Block"),
        ({"classes": nn.LSTM}, "available classes: BatchNorm1d, Block, Dropout, GELU"),
        ({"paths": "block.*"}, "available paths: blocks.3, blocks.2"),
        (
            {"paths": "blocks"},
            "blocks is a ModuleList, which has no forward of its own; 'blocks.*'",
        ),
        ({"classes": [3]}, "classes are module classes or their names: got 3"),
        ({"paths": [Block]}, "paths are patterns"),
    ],
)
def test_a_mistake_is_told(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        checkpoint_activations(tower(), **given)
    assert said in str(caught.value)


def test_twice_is_told() -> None:
    model = tower()
    checkpoint_activations(model, classes=Block)
    with pytest.raises(UsageError, match=r"blocks.0 is checkpointed already"):
        checkpoint_activations(model, paths="blocks.0")


# With others.


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.skipif(not CHECKPOINTS_COMPILED, reason="not with this torch: docs/versions.md")
@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_in_a_compiled_model(backend: str) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 16)
            )

        def forward(self, x: Tensor) -> Tensor:
            return x + self.layers(x)

    def run(*, switched: bool) -> dict[str, Any]:
        torch._dynamo.reset()
        torch.manual_seed(5)
        model = nn.Sequential(Plain(), Plain(), nn.Linear(16, 3))
        if switched:
            checkpoint_activations(model, classes=Plain)
        compiled: Any = torch.compile(model, backend=backend, fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with Guard(compiled, optimizer) as guard:
            losses = []
            for x, y in guard(features()):
                loss = nn.functional.cross_entropy(compiled(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
        return {"losses": losses, "state": state_of(model, optimizer)}

    assert_same(run(switched=False), run(switched=True))


def test_it_is_there_under_the_packages_name() -> None:
    assert headway.checkpoint_activations is checkpoint_activations


@pytest.fixture
def _one_process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_one_process_group")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("how", ["ddp", "fully_shard", "fully_shard each block"])
def test_in_a_distributed_model(how: str) -> None:
    if how != "ddp" and not SHARDS_ON_CPU:
        pytest.skip("this torch cannot shard on the CPU")

    def run(*, switched: bool) -> list[Tensor]:
        torch.manual_seed(5)
        model: Any = Attention()
        if switched:
            checkpoint_activations(model, classes="TransformerEncoderLayer")
        if how == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        else:
            mesh = torch.distributed.init_device_mesh("cpu", (1,))
            for layer in model.encoder.layers if how == "fully_shard each block" else ():
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        losses = []
        torch.manual_seed(6)
        for _ in range(STEPS):
            loss = model(torch.randint(0, 11, (6, 5))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    assert_same(run(switched=False), run(switched=True))
