"""Saves and restores what a step changes besides weights: the model's buffers and the user's own
objects.
"""

from __future__ import annotations

import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.hooks import RemovableHandle

from headway.torch_adapters.compat import module_buffers, tensor_version
from headway.torch_adapters.module_stack import user_path
from headway.torch_adapters.process_groups.hook_states import HookStates
from headway.torch_adapters.runtime_state import is_capturing

# Putting back what a bad forward did to the model's buffers.

# BatchNorm updates its running statistics in the forward pass, before anybody knows that the batch
# is bad. A copy of every buffer is kept. Large ones are copied again only where torch's version
# counter says that they changed, so masks and position tables cost one copy in all. Small
# floating-point buffers of modules in training mode are always copied: BatchNorm's kernel changes
# its statistics behind the version counter's back.

STATISTIC_BYTES = 1 << 16
"""Up to this size a buffer may be a running statistic."""
MAX_BUFFER_BYTES = 1 << 26
"""A larger buffer is a table, not a statistic: no copy is kept of it."""


class BufferBackup:
    """The buffers as they were before this step's forward."""

    def __init__(self, modules: Iterable[nn.Module], hooks: HookStates | None = None) -> None:
        """`hooks`: what communication hooks remember, which goes the same way."""
        self._roots = list(modules)
        self._hooks = hooks or None
        # Weak: a module that is taken out of the model shall go, and its buffers with it.
        self._homes: list[tuple[weakref.ref[nn.Module], str, str]] = []
        self._copies: list[Tensor | None] = []
        # The tensor itself, not its id: that of one replaced meanwhile may be another's by now.
        self._stamps: list[tuple[Tensor, int] | None] = []
        self.changing: set[int] = set()
        """Positions of the buffers that training changes, or may."""
        self._replayed: list[RemovableHandle] = []
        """Hooks on the models, where replays of a CUDA graph may change the buffers."""
        self._before_forward = True
        """Whether no forward pass of this step has begun."""
        self.find_new_buffers()
        self.renew()
        self.changing.clear()

    def __len__(self) -> int:
        return len(self._homes)

    @property
    def names(self) -> list[str]:
        """Their paths in the model."""
        return [path for _, _, path in self._homes]

    def find_new_buffers(self) -> None:
        """Find the buffers that were not there before; the others keep their positions.

        The place of one whose module is gone is taken by the one that came to its path.
        """
        known = {(id(module), name) for home, name, _ in self._homes if (module := home())}
        free = {path: at for at, (home, _, path) in enumerate(self._homes) if home() is None}
        for at in free.values():
            self._copies[at] = self._stamps[at] = None
        seen = {id(self.current(position)) for position in range(len(self._homes))}
        for root in self._roots:
            for path, module in root.named_modules():
                for name, buffer in module_buffers(module).items():
                    if buffer is None or (id(module), name) in known or id(buffer) in seen:
                        continue
                    if buffer.nbytes <= MAX_BUFFER_BYTES:
                        seen.add(id(buffer))
                        self._settle_in(module, name, user_path(f"{path}.{name}"), free)

    def _settle_in(self, module: nn.Module, name: str, path: str, free: dict[str, int]) -> None:
        home = (weakref.ref(module), name, path)
        if path in free:
            self._homes[free.pop(path)] = home
        else:
            self._homes.append(home)
            self._copies.append(None)
            self._stamps.append(None)

    def current(self, position: int) -> Tensor | None:
        """The buffer itself, as it is now."""
        home, name, _ = self._homes[position]
        module = home()
        return None if module is None else module._buffers.get(name)

    def touched(self) -> list[int]:
        """Positions of the buffers that changed, or may have, since they were last copied."""
        found = []
        for position, (home, name, _) in enumerate(self._homes):
            module = home()
            # Directly, once a step for each: only modules that have this dict are in `_homes`.
            buffer = None if module is None else module._buffers.get(name)
            if module is None or buffer is None:
                continue
            stamp = self._stamps[position]
            if (
                stamp is None
                or stamp[0] is not buffer
                or stamp[1] != tensor_version(buffer)
                or (module.training and _may_be_statistic(buffer))
            ):
                found.append(position)
        return found

    def expect_replays(self) -> None:
        """A step was recorded into a CUDA graph, whose replays change the buffers unseen: from now
        on, keep them as they are when the forward pass of a step begins."""
        if not self._replayed:
            self._replayed = [
                root.register_forward_pre_hook(self._forward_begins) for root in self._roots
            ]

    def forget_replays(self) -> None:
        for handle in self._replayed:
            handle.remove()
        self._replayed.clear()

    def _forward_begins(self, module: nn.Module, args: Any) -> None:
        if self._before_forward and not is_capturing():
            self.renew()
            self._before_forward = False

    def renew(self) -> None:
        """Keep the present buffers: they are not restored."""
        self._before_forward = True
        touched = self.touched() if self._homes else ()
        if touched:
            self._copy(touched)
        if self._hooks is not None:
            with torch.no_grad():
                self._hooks.renew()

    @torch.no_grad()
    def _copy(self, touched: Iterable[int]) -> None:
        pairs: list[tuple[Tensor, Tensor]] = []
        for position in touched:
            buffer, copy = self.current(position), self._copies[position]
            assert buffer is not None
            if copy is not None and _alike(copy, buffer):
                pairs.append((copy, buffer))
            else:
                self._copies[position] = buffer.detach().clone()
            self._stamp(position, buffer)
            self.changing.add(position)
        if pairs:
            torch._foreach_copy_([copy for copy, _ in pairs], [buffer for _, buffer in pairs])

    @torch.no_grad()
    def restore(self) -> int:
        """Put the copies back where something changed; how many that were."""
        self._before_forward = True
        if self._hooks is not None:
            self._hooks.restore()
        touched = self.touched()
        for position in touched:
            buffer, copy = self.current(position), self._copies[position]
            if buffer is None or copy is None:
                continue
            if _alike(copy, buffer):
                buffer.copy_(copy)
            else:  # the forward put another tensor in its place
                home, name, _ = self._homes[position]
                buffer = copy.clone()
                if (module := home()) is not None:
                    module_buffers(module)[name] = buffer
            self._stamp(position, buffer)
        return len(touched)

    @torch.no_grad()
    def settle_on_device(self, bad: Tensor) -> None:
        """Restore where `bad` is true and renew where it is not, without asking the host which."""
        self._before_forward = True
        if self._hooks is not None:
            self._hooks.settle_on_device(bad)
        by_dtype: dict[torch.dtype, list[int]] = {}
        for position in self.touched():
            buffer, copy = self.current(position), self._copies[position]
            assert buffer is not None
            if copy is None or not _alike(copy, buffer) or buffer.device != bad.device:
                self._copies[position] = buffer.detach().clone()
                self._stamp(position, buffer)
            else:
                by_dtype.setdefault(buffer.dtype, []).append(position)
        for positions in by_dtype.values():
            self._settle(positions, bad)

    def _settle(self, positions: Sequence[int], bad: Tensor) -> None:
        present = [self.current(at) for at in positions]
        live = [buffer for buffer in present if buffer is not None]
        copies = [copy for at in positions if (copy := self._copies[at]) is not None]
        # One flat select instead of one per buffer: a ResNet has hundreds of them.
        flat = torch.where(
            bad,
            torch.cat([t.reshape(-1) for t in copies]),
            torch.cat([t.reshape(-1) for t in live]),
        )
        pieces = [
            piece.view(buffer.shape)
            for piece, buffer in zip(flat.split([b.numel() for b in live]), live, strict=True)
        ]
        torch._foreach_copy_(live, pieces)
        torch._foreach_copy_(copies, pieces)
        for position, buffer in zip(positions, live, strict=True):
            self._stamp(position, buffer)
            self.changing.add(position)

    def _stamp(self, position: int, buffer: Tensor) -> None:
        self._stamps[position] = (buffer, tensor_version(buffer))


def _may_be_statistic(buffer: Tensor) -> bool:
    return buffer.nbytes <= STATISTIC_BYTES and buffer.is_floating_point()


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device


# Putting a user's own objects back as they were: lists, counters, meters, averages.

# When a loop's body is run once more to find out what went wrong, it appends to the same lists,
# counts in the same objects, and updates the same moving average of the weights. What it can reach
# through its variables is remembered before, and put back after: the content of containers, the
# plain attributes of objects, and tensors that were changed in place.

MAX_DEPTH = 4
"""Containers within containers are followed so far: `history["train"]["loss"]` is two."""
MAX_ITEMS = 1_000
"""In a longer list or dict, only the content is put back and not what its members hold."""
MAX_OBJECTS = 20_000
MAX_BYTES = 8 << 30
"""Of tensors that are copied, into host memory; what is beyond is left as the body leaves it."""
MAX_STATISTIC_BYTES = 1 << 16
"""Up to this size a tensor may change unseen: BatchNorm's kernel leaves the version as it is."""

_CONTAINERS = (list, dict, set, deque, bytearray)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_TORCHS = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""Containers of a module that hold what is trained."""
_LEFT_ALONE = (
    Optimizer,
    DataLoader,
    Dataset,
    Sampler,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.GeneratorType,
)


class ObjectSnapshot:
    """The contents of some objects at one moment."""

    def __init__(
        self,
        objects: Iterable[Any],
        trained: Sequence[nn.Module] = (),
        *,
        tensors: bool = True,
        deepest: int = MAX_DEPTH,
    ) -> None:
        """`trained`: models whose tensors are restored elsewhere; `tensors`: copy those of the
        others."""
        self._undo: list[Callable[[], None]] = []
        self._seen: dict[int, Any] = {}
        self._bytes = 0 if tensors else MAX_BYTES
        self._trained = {id(module) for model in trained for module in model.modules()}
        # Near ones first: what is reached by two ways is followed from the shorter one.
        self._waiting = deque((item, deepest) for item in objects)
        while self._waiting:
            self._remember(*self._waiting.popleft())

    def __call__(self) -> None:
        """Put everything back."""
        for undo in self._undo:
            undo()

    def _remember(self, value: Any, depth: int) -> None:
        if isinstance(value, (*_PLAIN, *_LEFT_ALONE)):
            return
        if id(value) in self._seen or depth == 0 or len(self._seen) >= MAX_OBJECTS:
            return
        self._seen[id(value)] = value  # kept, so that the identity stays its own
        if isinstance(value, Tensor):
            self._remember_tensor(value)
        elif isinstance(value, (*_CONTAINERS, tuple)):
            self._remember_container(value, depth)
        elif isinstance(value, nn.Module):
            for module in value.modules():
                self._remember_attributes(module, 2, only=_CONTAINERS)
                if id(module) not in self._trained:
                    self._remember_tensors_of(module)
        else:
            self._remember_attributes(value, depth)

    def _remember_container(self, value: Any, depth: int) -> None:
        content: Any = dict(value) if isinstance(value, dict) else list(value)
        if not isinstance(value, tuple):
            self._undo.append(lambda: _refill(value, content))
        if len(content) <= MAX_ITEMS:
            for item in content.values() if isinstance(content, dict) else content:
                self._waiting.append((item, depth - 1))

    def _remember_attributes(self, owner: Any, depth: int, only: Any = object) -> None:
        attributes = getattr(owner, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        plain = {name: v for name, v in attributes.items() if isinstance(v, (*_PLAIN, tuple))}
        self._undo.append(lambda: _rebind(attributes, plain))
        for name, item in [*attributes.items()]:
            if isinstance(item, only) and name not in _TORCHS:
                self._waiting.append((item, depth - 1))

    def _remember_tensors_of(self, module: nn.Module) -> None:
        for tensor in (*module._parameters.values(), *module_buffers(module).values()):
            if tensor is not None:
                self._remember(tensor, 1)

    def _remember_tensor(self, tensor: Tensor) -> None:
        """Results of the step that the variables still hold are not worth a copy."""
        if tensor.grad_fn is not None or tensor.layout is not torch.strided:
            return
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_inference():
            return
        self._bytes += tensor.nbytes
        if self._bytes > MAX_BYTES:
            return
        version, kept = tensor_version(tensor), tensor.detach().to("cpu", copy=True)

        @torch.no_grad()
        def undo() -> None:
            may_have = tensor_version(tensor) != version or tensor.nbytes <= MAX_STATISTIC_BYTES
            if may_have and not torch.equal(tensor.cpu(), kept):
                tensor.copy_(kept)

        self._undo.append(undo)


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, (list, bytearray)):
        if len(container) != len(content) or any(
            now is not before for now, before in zip(container, content, strict=True)
        ):
            container[:] = content
    else:
        container.clear()
        extend = container.extend if isinstance(container, deque) else container.update
        extend(content)


def _rebind(attributes: dict[str, Any], plain: dict[str, Any]) -> None:
    for name, value in plain.items():
        if name not in attributes or attributes[name] is not value:
            attributes[name] = value
