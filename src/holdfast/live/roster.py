"""Which parameters there are, under which names and at which positions of the header's `param`
axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)


_WRAPPERS = {"", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def users_path(path: str) -> str:
    """A path as the user wrote it: without what torch.compile and its like wrap around modules."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


class Roster:
    """Every parameter of the models and of the optimizers, each once.

    Positions are given for good: a parameter that appears later is added at the end, one that
    vanishes keeps its place.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self._models = models
        self._optimizers = optimizers
        self.names: list[str] = []
        self.numel: list[int] = []
        self.dtypes: list[str] = []
        self._norm_or_bias: set[int] = set()
        self._position: dict[int, int] = {}
        self._from_model: set[int] = set()
        # Positions go by identity, so the tensors must live: a reused id would be another's name.
        self._tensors: list[Tensor] = []
        self.refresh()

    def refresh(self) -> dict[str, Any]:
        """Look again at models and optimizers; the facts of the `parameters` set-up record."""
        self._visit_models()
        in_optimizer = self._visit_optimizers()
        present = {id(p) for model in self._models for p in model.parameters()} | in_optimizer
        return {
            "names": list(self.names),
            "numel": list(self.numel),
            "dtypes": list(self.dtypes),
            "trainable": self._where(lambda p: p.requires_grad and id(p) in present),
            "optimized": self._where(lambda p: id(p) in in_optimizer),
            "norm_or_bias": sorted(self._norm_or_bias),
        }

    def positions(self, parameters: Iterable[Tensor]) -> list[int]:
        """Their positions; one that nobody has a name for is added under a number."""
        wanted = list(parameters)
        if any(id(p) not in self._position for p in wanted):
            self.refresh()
        return [
            self._position[id(p)] if id(p) in self._position else self._add(p, self._nameless())
            for p in wanted
        ]

    def by_identity(self) -> dict[int, str]:
        """Names by the identity of the tensor."""
        return {identity: self.names[at] for identity, at in self._position.items()}

    def vanished(self) -> list[str]:
        """Parameters the optimizers still hold although no model has them any more."""
        in_models = {id(p) for model in self._models for p in model.parameters()}
        return [
            self.names[self._position[id(p)]]
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for p in group["params"]
            if id(p) in self._from_model and id(p) not in in_models
        ]

    def _where(self, wanted: Any) -> list[int]:
        return [at for at, parameter in enumerate(self._tensors) if wanted(parameter)]

    def _visit_models(self) -> None:
        for number, model in enumerate(self._models):
            prefix = f"model{number}." if len(self._models) > 1 else ""
            for path, module in model.named_modules():
                for name, parameter in module._parameters.items():
                    if parameter is None or id(parameter) in self._position:
                        continue
                    self._from_model.add(id(parameter))
                    position = self._add(parameter, prefix + users_path(f"{path}.{name}"))
                    if isinstance(module, _NORMS) or name == "bias" or parameter.ndim < 2:
                        self._norm_or_bias.add(position)

    def _visit_optimizers(self) -> set[int]:
        held: set[int] = set()
        for number, optimizer in enumerate(self._optimizers):
            for at, group in enumerate(optimizer.param_groups):
                for index, parameter in enumerate(group["params"]):
                    held.add(id(parameter))
                    if id(parameter) not in self._position:
                        prefix = f"optimizer{number}." if len(self._optimizers) > 1 else ""
                        self._add(parameter, f"{prefix}group{at}.{index}")
        return held

    def _nameless(self) -> str:
        return f"group?.{len(self.names)}"

    def _add(self, parameter: Tensor, name: str) -> int:
        position = len(self.names)
        self._position[id(parameter)] = position
        self._tensors.append(parameter)
        self.names.append(name)
        self.numel.append(parameter.numel())
        self.dtypes.append(str(parameter.dtype).removeprefix("torch."))
        return position
