"""Indexes parameters by name and position, records them, and inspects their state for non-finite
values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from headway.guard.recorder import Recorder
from headway.output.notices import Notices
from headway.rerun.recorded_batch import RecordedBatch
from headway.torch_adapters import tensor_values
from headway.torch_adapters.autograd_graph import dtypes_in_graph
from headway.torch_adapters.compat import RunningNorm
from headway.torch_adapters.module_stack import user_path

_NORMS = (
    RunningNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)


class ParameterIndex:
    """Every parameter of the models and of the optimizers, each once.

    A position along the `param` axis never changes: a new parameter is added at the end, and only
    one of the same name can take the position of one that is gone. None is kept alive.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self._models = models
        self._optimizers = optimizers
        self.names: list[str] = []
        self.numel: list[int] = []
        self.dtypes: list[str] = []
        self.types: list[str] = []
        """The class of the module that has each; empty for one of an optimizer alone."""
        self._norm_or_bias: set[int] = set()
        self._position: dict[int, int] = {}
        self._from_model: set[int] = set()
        # Positions go by identity, and the identity of one that is gone may be another's by now.
        self._tensors: list[weakref.ref[Tensor]] = []
        self._free: dict[str, int] = {}
        self.refresh()

    def refresh(self) -> dict[str, Any]:
        """Scan models and optimizers; the facts of the `parameters` setup record."""
        self._position = {id(p): at for at, p in self._present()}
        gone = set(range(len(self.names))) - set(self._position.values())
        self._free = {self.names[at]: at for at in gone}
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
            "types": list(self.types),
        }

    def positions(self, parameters: Iterable[Tensor]) -> list[int]:
        """Their positions; a parameter without a name is added under a number."""
        wanted = list(parameters)
        found = [self._at(p) for p in wanted]
        if None in found:
            self.refresh()
        return [
            self._add(p, self._nameless()) if (at := self._at(p)) is None else at for p in wanted
        ]

    def by_identity(self) -> dict[int, str]:
        """Names by the identity of the tensor."""
        return {id(p): self.names[at] for at, p in self._present()}

    def tensors(self) -> dict[str, Tensor]:
        """Parameters that still exist, by name."""
        return {self.names[at]: p for at, p in self._present()}

    def vanished(self) -> list[str]:
        """Parameters that the optimizers hold although they are no longer in a model."""
        in_models = {id(p) for model in self._models for p in model.parameters()}
        return [
            self.names[at]
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for p in group["params"]
            if id(p) not in in_models and (at := self._at(p)) in self._from_model
        ]

    def _where(self, wanted: Any) -> list[int]:
        return [at for at, parameter in self._present() if wanted(parameter)]

    def _present(self) -> list[tuple[int, Tensor]]:
        """(position, parameter) of those that still exist."""
        return [(at, p) for at, ref in enumerate(self._tensors) if (p := ref()) is not None]

    def _at(self, parameter: Tensor) -> int | None:
        at = self._position.get(id(parameter))
        return at if at is not None and self._tensors[at]() is parameter else None

    def _visit_models(self) -> None:
        for number, model in enumerate(self._models):
            prefix = f"model{number}." if len(self._models) > 1 else ""
            for path, module in model.named_modules():
                for name, parameter in module._parameters.items():
                    if parameter is None or self._at(parameter) is not None:
                        continue
                    position = self._add(parameter, prefix + user_path(f"{path}.{name}"))
                    self._from_model.add(position)
                    self.types[position] = type(module).__name__
                    if isinstance(module, _NORMS) or name == "bias" or parameter.ndim < 2:
                        self._norm_or_bias.add(position)

    def _visit_optimizers(self) -> set[int]:
        held: set[int] = set()
        for number, optimizer in enumerate(self._optimizers):
            for at, group in enumerate(optimizer.param_groups):
                for index, parameter in enumerate(group["params"]):
                    held.add(id(parameter))
                    if self._at(parameter) is None:
                        prefix = f"optimizer{number}." if len(self._optimizers) > 1 else ""
                        self._add(parameter, f"{prefix}group{at}.{index}")
        return held

    def _nameless(self) -> str:
        return f"group?.{len(self.names)}"

    def _add(self, parameter: Tensor, name: str) -> int:
        position = self._place_for(name)
        self._position[id(parameter)] = position
        self._tensors[position] = weakref.ref(parameter)
        self.numel[position] = parameter.numel()
        self.dtypes[position] = str(parameter.dtype).removeprefix("torch.")
        return position

    def _place_for(self, name: str) -> int:
        """The position of a lost parameter of this name, or a new one at the end."""
        if name in self._free:
            return self._free.pop(name)
        self.names.append(name)
        self._tensors.append(_GONE)
        self.numel.append(0)
        self.dtypes.append("")
        self.types.append("")
        return len(self.names) - 1


def _gone() -> weakref.ref[Tensor]:
    return weakref.ref(Tensor())


_GONE = _gone()


class StateInspector:
    """Records parameters and non-finite tensors of models, optimizers and batches."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        recorder: Recorder,
        notices: Notices,
    ) -> None:
        self.parameter_index = ParameterIndex(models, optimizers)
        self._models = models
        self._optimizers = optimizers
        self._recorder = recorder
        self._notices = notices
        self._parameters: dict[str, Any] = {}
        self.precision_known = False
        self.on_bad_buffer: Callable[[int], None] = lambda step: None
        """Called with the step at which a buffer was found to be non-finite."""

    def at_start(self) -> None:
        """Record the parameters, and non-finite state that a checkpoint may have brought."""
        self._record_parameters(0, self.parameter_index.refresh())
        self.state(0)
        self._recorder.event(0, "scan", {"roles": ["weight", "buffer", "moment"]})

    def state(self, step: int) -> tuple[str, ...]:
        """Record every non-finite tensor of the state; the names of weights and moments."""
        names = self.parameter_index.by_identity()
        poisoned = []
        for bad in tensor_values.scan_state(self._models, self._optimizers, names):
            self._record_tensor(step, bad)
            if bad.role in ("weight", "moment"):
                poisoned.append(bad.name)
            elif step:
                self.on_bad_buffer(step)
        return tuple(poisoned)

    def batches(self, step: int, batches: Sequence[RecordedBatch]) -> None:
        """Record every non-finite tensor of the step's batches."""
        for kept in batches:
            if kept.lost:
                continue  # the loop may have put the bad values there
            with kept.as_given():
                for bad in tensor_values.scan_batch(kept.batch, kept.indices()):
                    self._record_tensor(step, bad)

    def parameters(self, step: int) -> None:
        """Record the parameters again if any were added, removed, frozen or unfrozen."""
        present = self.parameter_index.refresh()
        if present != self._parameters:
            self._record_parameters(step, present)
        gone = self.parameter_index.vanished()
        if gone:
            self._notices.once(
                "vanished",
                f"the optimizer holds {gone[0]}"
                + (f" and {len(gone) - 1} more" if len(gone) > 1 else "")
                + ", no longer part of the model: updates of it have no effect. "
                "Create the optimizer after the model is final",
            )

    def precision(self, step: int, roots: Sequence[Tensor], *, scaled: bool) -> None:
        """Record the dtypes of the weights and of the computation of the losses."""
        self.precision_known = True
        dtypes = {self._parameters["dtypes"][at] for at in self._parameters["trainable"]}
        facts = {
            "weights": sorted(dtypes),
            "compute": sorted(dtypes_in_graph(roots)),
            "scaler": scaled,
        }
        self._recorder.setup(step, "precision", facts)

    def _record_parameters(self, step: int, present: dict[str, Any]) -> None:
        self._parameters = present
        self._recorder.extend_axis("param", self.parameter_index.names)
        self._recorder.setup(step, "parameters", present)

    def _record_tensor(self, step: int, bad: tensor_values.BadTensor) -> None:
        self._recorder.tensor(
            step,
            bad.name,
            bad.role,
            dtype=str(bad.tensor.dtype).removeprefix("torch."),
            shape=tuple(bad.tensor.shape),
            stats=bad.stats,
            facts=bad.facts,
        )
