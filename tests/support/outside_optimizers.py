"""Optimizers from PyPI packages, and everything that an optimizer holds as comparable data."""

from __future__ import annotations

import importlib
import random
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway import Guard
from support.trainings import Batch, batches

Make = Callable[[nn.Module, Any], Any]
"""Makes an optimizer of a model, with the module of the package."""
STEPS = 12
FAULTS = {5: float("nan"), 8: float("inf")}
"""Steps whose loss is multiplied by this."""


@dataclass(frozen=True)
class OutsideOptimizer:
    package: str
    name: str
    make: Make
    closure: bool = False
    """Whether its step wants a closure."""
    create_graph: bool = False
    """Whether it differentiates the gradient once more."""
    draws: bool = False
    """Whether it draws random numbers before its closure, which a skipped step then has drawn."""

    def __str__(self) -> str:
        return f"{self.package} {self.name}"


def plain(package: str, names: str, **options: Any) -> list[OutsideOptimizer]:
    """Classes that take parameters and options."""

    def make(name: str) -> Make:
        return lambda model, module: getattr(module, name)(model.parameters(), **options)

    return [OutsideOptimizer(package, name, make(name)) for name in names.split()]


def around(package: str, name: str, make: Callable[[Any, nn.Module], Any]) -> OutsideOptimizer:
    """A wrapper around torch's AdamW, or what else `make` builds."""
    return OutsideOptimizer(package, name, lambda model, module: make(module, model))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.ndim == 2]


def others(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.ndim != 2]


def _schedule_free(package: str, names: str) -> list[OutsideOptimizer]:
    def make(name: str) -> Make:
        def made(model: nn.Module, module: Any) -> Any:
            optimizer = getattr(module, name)(model.parameters(), lr=1e-2)
            optimizer.train()
            return optimizer

        return made

    return [OutsideOptimizer(package, name, make(name)) for name in names.split()]


def _free_wrapper(module: Any, model: nn.Module) -> Any:
    optimizer = module.ScheduleFreeWrapper(torch.optim.SGD(model.parameters(), lr=1e-2))
    optimizer.train()
    return optimizer


def _muon_with_adam(module: Any, model: nn.Module) -> Any:
    return module.SingleDeviceMuonWithAuxAdam(
        [
            {"params": matrices(model), "use_muon": True, "lr": 1e-2},
            {"params": others(model), "use_muon": False, "lr": 1e-3},
        ]
    )


OUTSIDE: list[OutsideOptimizer] = [
    *plain(
        "pytorch_optimizer",
        "A2Grad ADOPT ASGD AccSGD AdEMAMix AdaBelief AdaBound AdaFactor AdaMax AdaMod AdaNorm "
        "AdaPNM AdaSmooth AdaTAM AdamG AdamP AdamS Adan AggMo Aida Amos Ano ApolloDQN "
        "AvaGrad CAME DAdaptAdaGrad DAdaptAdam DAdaptAdan DAdaptLion DAdaptSGD DiffGrad EXAdam "
        "EmoFact EmoLynx EmoNavi FAdam FTRL Fira FOCUS Fromage GaLore Grams Gravity "
        "GrokFastAdamW Kate Kron LARS LaProp Lamb Lion MADGRAD MARS MSVAG Nero NovoGrad PAdam PID "
        "PNM Prodigy QHAdam QHM RACS RAdam Ranger SCION SGDP SGDSaI SGDW SM3 SOAP SPAM SPlus "
        "SRMM SWATS ScalableShampoo Shampoo SignSGD SimplifiedAdEMAMix StableAdamW StableSPAM TAM "
        "Tiger VSGD Yogi",
    ),
    OutsideOptimizer(
        "pytorch_optimizer",
        "Ranger21",
        lambda model, module: module.Ranger21(model.parameters(), num_iterations=STEPS),
    ),
    around("pytorch_optimizer", "AdamMini", lambda module, model: module.AdamMini(model)),
    around(
        "pytorch_optimizer",
        "Muon",
        lambda module, model: module.Muon(
            [
                {"params": matrices(model), "use_muon": True},
                {"params": others(model), "use_muon": False},
            ]
        ),
    ),
    *_schedule_free("pytorch_optimizer", "ScheduleFreeAdamW ScheduleFreeRAdam ScheduleFreeSGD"),
    around("pytorch_optimizer", "Lookahead", lambda m, model: m.Lookahead(adamw(model), k=3)),
    around("pytorch_optimizer", "OrthoGrad", lambda m, model: m.OrthoGrad(adamw(model))),
    around("pytorch_optimizer", "TRAC", lambda m, model: m.TRAC(adamw(model))),
    OutsideOptimizer(
        "pytorch_optimizer",
        "SAM",
        lambda model, m: m.SAM(model.parameters(), base_optimizer=torch.optim.AdamW, lr=1e-2),
        closure=True,
    ),
    OutsideOptimizer(
        "pytorch_optimizer",
        "BSAM",
        lambda model, m: m.BSAM(model.parameters(), num_data=64),
        closure=True,
        draws=True,
    ),
    OutsideOptimizer(
        "pytorch_optimizer",
        "AdaHessian",
        lambda model, m: m.AdaHessian(model.parameters()),
        create_graph=True,
    ),
    OutsideOptimizer(
        "pytorch_optimizer",
        "SophiaH",
        lambda model, m: m.SophiaH(model.parameters()),
        create_graph=True,
    ),
    *_schedule_free("schedulefree", "AdamWScheduleFree RAdamScheduleFree SGDScheduleFree"),
    *_schedule_free("schedulefree", "AdamWScheduleFreeReference SGDScheduleFreeReference"),
    around("schedulefree", "ScheduleFreeWrapper", _free_wrapper),
    *(
        OutsideOptimizer("schedulefree", name, item, closure=True)
        for kind in ("AdamW", "RAdam", "SGD")
        for name in [f"{kind}ScheduleFreeClosure"]
        for item in [
            lambda model, module, name=name: getattr(module, name)(model.parameters(), lr=1e-2)
        ]
    ),
    *plain(
        "torch_optimizer",
        "A2GradExp AccSGD AdaBelief AdaBound AdaMod Adafactor AdamP AggMo Apollo DiffGrad LARS "
        "Lamb MADGRAD NovoGrad PID QHAdam QHM RAdam SGDP SGDW SWATS Shampoo Yogi",
        lr=1e-3,
    ),
    around("torch_optimizer", "Lookahead", lambda m, model: m.Lookahead(adamw(model), k=3)),
    *plain("lion_pytorch", "Lion", lr=1e-3),
    *plain("adan_pytorch", "Adan", lr=1e-3),
    *plain("prodigyopt", "Prodigy"),
    *plain("dadaptation", "DAdaptAdaGrad DAdaptAdam DAdaptAdan DAdaptLion DAdaptSGD"),
    *plain("came_pytorch", "CAME", lr=1e-3),
    *plain("pytorch_ranger", "Ranger RangerQH RangerVA"),
    *plain("adabelief_pytorch", "AdaBelief", print_change_log=False),
    *plain("grokadamw", "GrokAdamW"),
    *plain("galore_torch", "GaLoreAdamW GaLoreAdafactor"),
    OutsideOptimizer(
        "ranger21",
        "Ranger21",
        lambda model, module: module.Ranger21(
            model.parameters(), lr=1e-3, num_epochs=2, num_batches_per_epoch=STEPS
        ),
    ),
    around("muon", "SingleDeviceMuonWithAuxAdam", _muon_with_adam),
    OutsideOptimizer(
        "muon",
        "SingleDeviceMuon",
        lambda model, module: module.SingleDeviceMuon(matrices(model), lr=1e-2),
    ),
    *plain("bitsandbytes.optim", "AdamW8bit Adam8bit Lion8bit AdEMAMix8bit AdamW", lr=1e-3),
    *plain("torchao.optim", "AdamW8bit Adam8bit AdamWFp8", lr=1e-3),
    *plain("heavyball", "AdamW SFAdamW LaProp ADOPT", lr=1e-3),
]


def deep_state(item: Any, parameters: dict[int, str] | None = None) -> Any:
    """Everything below an object as nested lists, dicts and copied tensors.

    Functions, hooks and the `step` that a scheduler or a guard has wrapped are no state.
    """
    names = {} if parameters is None else parameters
    return _Reader(names).read(item)


class _Reader:
    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._within: set[int] = set()

    def read(self, item: Any) -> Any:
        if isinstance(item, Tensor):
            return self._tensor(item)
        if item is None or isinstance(item, (bool, int, float, complex, str, bytes)):
            return "an address" if _is_address(item) else item
        if isinstance(item, torch.Generator):
            return item.get_state()
        if isinstance(item, _NO_STATE) or id(item) in self._within:
            return type(item).__name__
        self._within.add(id(item))
        try:
            return self._inside(item)
        finally:
            self._within.discard(id(item))

    def _inside(self, item: Any) -> Any:
        if isinstance(item, dict):
            entries = enumerate(item.items())
            return {self._key(at, key): self.read(value) for at, (key, value) in entries}
        if isinstance(item, (list, tuple)) or type(item).__name__ in ("deque", "set"):
            return [self.read(value) for value in item]
        if isinstance(item, nn.Module):
            return {name: self.read(value) for name, value in item.state_dict().items()}
        attributes = getattr(item, "__dict__", None)
        if attributes is None:
            return repr(item) if type(item).__repr__ is not object.__repr__ else type(item).__name__
        return {
            name: self.read(value)
            for name, value in attributes.items()
            if not name.startswith("_optimizer_") and name not in _NOT_COMPARED
        }

    def _key(self, at: int, key: Any) -> str:
        if isinstance(key, Tensor):
            return self._names.get(id(key), f"tensor {at}")
        if isinstance(key, tuple) and any(map(_is_address, key)):
            return f"address {at}"
        return str(key)

    def _tensor(self, item: Tensor) -> Any:
        flatten = getattr(item, "__tensor_flatten__", None)
        if flatten is not None:
            return {name: self._tensor(getattr(item, name)) for name in flatten()[0]}
        return item.detach().clone()


def _is_address(item: Any) -> bool:
    """Whether a number is one of memory (`data_ptr`), as heavyball keeps: no two runs agree."""
    return isinstance(item, int) and item > 1 << 40


_NOT_COMPARED = ("step", "_opt_called", "_zero_grad_profile_name")
_NO_STATE = (
    *(type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType),
    *(torch.dtype, torch.device, torch.optim.lr_scheduler.LRScheduler),
)


def make_model() -> nn.Sequential:
    """Two matrices and two vectors, no dropout."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 1))


class Training:
    """One run with one optimizer: its state after each step."""

    def __init__(self, make: Callable[[nn.Module], Any], *, closure: bool, graph: bool) -> None:
        random.seed(0)
        np.random.seed(0)  # some optimizers draw from it (Kron)
        self.model = make_model()
        self.optimizer = make(self.model)
        self._closure, self._graph = closure, graph

    def state(self) -> Any:
        names = {id(p): name for name, p in self.model.named_parameters()}
        return {"model": deep_state(self.model), "optimizer": deep_state(self.optimizer, names)}

    def step(self, batch: Batch, factor: float = 1.0) -> None:
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            x, y = batch
            loss: Tensor = ((self.model(x) - y) ** 2).mean() * factor
            loss.backward(create_graph=self._graph)
            return loss

        closure()
        if self._closure:
            self.optimizer.step(closure)
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


@dataclass
class SkipResult:
    """What became of the bad steps of one optimizer."""

    changed: list[str]
    """What a skipped step changed."""
    later: list[str]
    """How the end differs from a run that never saw the bad batches."""
    skipped: list[int]


def try_skips(
    make: Callable[[nn.Module], Any], *, closure: bool = False, graph: bool = False
) -> SkipResult:
    """Train with bad batches under a guard, and without a guard on the good batches only."""
    data = batches(STEPS)
    training = Training(make, closure=closure, graph=graph)
    changed: list[str] = []
    with Guard(training.model, training.optimizer) as guard:
        for number, batch in enumerate(guard(data)):
            before = training.state()
            training.step(batch, FAULTS.get(number, 1.0))
            if number in FAULTS:
                changed += differences(before, training.state())
    guarded = training.state()
    clean = Training(make, closure=closure, graph=graph)
    for number, batch in enumerate(data):
        if number not in FAULTS:
            clean.step(batch)
    return SkipResult(
        changed, differences(clean.state(), guarded), [action.step for action in guard.actions]
    )


def try_healthy(
    make: Callable[[nn.Module], Any], *, closure: bool = False, graph: bool = False
) -> list[str]:
    """How a healthy run under a guard differs from the same run without one."""
    states = []
    for guarded in (True, False):
        training = Training(make, closure=closure, graph=graph)
        guard = Guard(training.model, training.optimizer) if guarded else None
        for batch in batches(STEPS):
            training.step(batch)
        if guard is not None:
            guard.close()
            assert guard.actions == []
        states.append([training.state(), torch.get_rng_state()])
    return differences(*states)


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Paths at which two states differ, bit for bit; NaN equals NaN."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = [f"{where}.{key}" for key in one.keys() ^ other.keys()]
        for key in one.keys() & other.keys():
            found += differences(one[key], other[key], f"{where}.{key}")
        return found
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return [where]
        pairs = enumerate(zip(one, other, strict=True))
        return [d for at, (a, b) in pairs for d in differences(a, b, f"{where}[{at}]")]
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return [where]
        return [] if _bits(one) == _bits(other) else [where]
    return [] if type(one) is type(other) and (one == other or one != one) else [where]


def _bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).tolist())


def load(package: str) -> Any:
    """The module of a package; ImportError where it is not installed or does not load here."""
    return importlib.import_module(package)
