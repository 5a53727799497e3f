"""Every private part of torch is there, or headway does without it as documented.

`make test-versions-matrix` runs this under each supported torch.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import inspect
import pkgutil
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed import distributed_c10d
from torch.nn.utils import clip_grad
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import headway.torch_adapters
from headway.numerics import _torch_compat
from headway.torch_adapters import (
    autocast_regions,
    compat,
    optimizer_adapter,
    private_parts,
)
from headway.torch_adapters.op_recording import op_frames
from headway.torch_adapters.private_parts import PRIVATE_PARTS, TREAT_AS_MISSING, private_part
from headway.torch_adapters.process_groups import local_gradients, rank_group, sharded_tensors

pytestmark = pytest.mark.fence

PACKAGE = "headway.torch_adapters"
MODULES = [
    item.name for item in pkgutil.walk_packages(headway.torch_adapters.__path__, f"{PACKAGE}.")
]
for _module in MODULES:
    importlib.import_module(_module)


@contextmanager
def without(module: str, *names: str) -> Iterator[Any]:
    """A copy of a module of torch_adapters, loaded as if torch lacked these names."""
    before = dict(PRIVATE_PARTS)
    TREAT_AS_MISSING.update(names)
    spec = importlib.util.find_spec(f"{PACKAGE}.{module}")
    assert spec is not None
    assert spec.origin is not None
    copy_spec = importlib.util.spec_from_file_location(f"{spec.name}_without", spec.origin)
    assert copy_spec is not None
    assert copy_spec.loader is not None
    copy = importlib.util.module_from_spec(copy_spec)
    sys.modules[copy_spec.name] = copy  # dataclasses look their module up
    try:
        copy_spec.loader.exec_module(copy)
        yield copy
    finally:
        del sys.modules[copy_spec.name]
        TREAT_AS_MISSING.clear()
        PRIVATE_PARTS.clear()
        PRIVATE_PARTS.update(before)


# One pair of checks for each name: what it does where it is there, and what happens without it.

Check = Callable[[Any], None]
CASES: dict[str, tuple[str, Check, Check]] = {}
"""Private name → the module that uses it, the check with it, the check without it."""


def case(name: str, module: str, *, present: Check) -> Callable[[Check], Check]:
    def add(missing: Check) -> Check:
        CASES[name] = (module, present, missing)
        return missing

    return add


def _weight() -> Tensor:
    return torch.ones(3, requires_grad=True)


def _version_counts(module: Any) -> None:
    x = torch.zeros(2)
    before = module.tensor_version(x)
    assert module.tensor_version(x) == before
    x.add_(1)
    assert module.tensor_version(x) > before


@case("torch.Tensor._version", "compat", present=_version_counts)
def _version_missing(module: Any) -> None:
    x = torch.zeros(2)
    assert module.tensor_version(x) != module.tensor_version(x)


def _count_skipped(module: Any) -> tuple[int, Any]:
    """Calls of the function behind a skipped step, and the weight after it."""
    weight, calls = nn.Parameter(torch.ones(2)), []

    class Counts(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            calls.append(1)
            weight.data.sub_(1)

    optimizer = Counts([weight], {})
    brake = module.HostBrake(optimizer)
    optimizer.register_step_pre_hook(lambda *_: brake.skip())
    optimizer.register_step_post_hook(lambda *_: brake.release())
    weight.grad = torch.ones(2)
    optimizer.step()
    return len(calls), weight


def _wrapper_calls(module: Any) -> int:
    """Calls of a hook for all optimizers, around a wrapper that is no `Optimizer`."""
    inner = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    wrapper = SimpleNamespace(step=lambda: None, param_groups=inner.param_groups)
    calls: list[Any] = []
    handles = [
        register_optimizer_step_pre_hook(lambda item, *_: calls.append(item)),
        register_optimizer_step_post_hook(lambda item, *_: calls.append(item)),
    ]
    remove = module.add_step_hooks(wrapper, lambda *_: None, lambda *_: None)
    wrapper.step()
    for handle in handles:
        handle.remove()
    remove()
    return sum(item is wrapper for item in calls)


def _both_hooks_are_called(module: Any) -> None:
    assert _wrapper_calls(module) == 2


@case(
    "torch.optim.optimizer._global_optimizer_pre_hooks",
    "step_skipping",
    present=_both_hooks_are_called,
)
@case(
    "torch.optim.optimizer._global_optimizer_post_hooks",
    "step_skipping",
    present=_both_hooks_are_called,
)
def _one_hook_is_called(module: Any) -> None:
    assert _wrapper_calls(module) == 1


def _step_is_not_called(module: Any) -> None:
    calls, weight = _count_skipped(module)
    assert (calls, weight.tolist()) == (0, [1.0, 1.0])


@case("torch.optim.Optimizer.profile_hook_step", "step_skipping", present=_step_is_not_called)
def _step_is_undone(module: Any) -> None:
    calls, weight = _count_skipped(module)
    assert (calls, weight.tolist()) == (1, [1.0, 1.0])


def _runs_as_it_is(module: Any) -> None:
    assert module.keep_uncompiled(lambda a, b: a + b)(1, b=2) == 3


@case(
    "torch._C._dynamo.eval_frame.get_eval_frame_callback", "runtime_state", present=_runs_as_it_is
)
@case("torch._C._dynamo.eval_frame.set_code_exec_strategy", "runtime_state", present=_runs_as_it_is)
def _runs_as_it_is_without(module: Any) -> None:
    _runs_as_it_is(module)


def _gradients_are_off_within(module: Any) -> None:
    within = module.without_gradients(torch.is_grad_enabled)
    assert not within()
    assert torch.is_grad_enabled()
    with torch.no_grad():
        assert not within()
        assert not torch.is_grad_enabled()


case("torch._C._set_grad_enabled", "runtime_state", present=_gradients_are_off_within)(
    _gradients_are_off_within
)


def _base_is_found(module: Any) -> None:
    x = torch.zeros(2, 2)
    assert module.base_tensor(x[0]) is x
    assert module.base_tensor(x) is None


@case("torch.Tensor._base", "compat", present=_base_is_found)
def _base_missing(module: Any) -> None:
    assert module.base_tensor(torch.zeros(2, 2)[0]) is None


def _version_is_preserved(module: Any) -> None:
    x = torch.zeros(2)
    before = compat.tensor_version(x)
    with module.preserve_version((x,)):
        x.add_(1)
    assert compat.tensor_version(x) == before


@case(
    "torch.autograd.grad_mode._unsafe_preserve_version_counter",
    "compat",
    present=_version_is_preserved,
)
def _version_rises(module: Any) -> None:
    x = torch.zeros(2)
    with module.preserve_version((x,)):
        x.add_(1)
    assert x.tolist() == [1, 1]


def _plain_tensor_wraps_nothing(module: Any) -> None:
    assert not module.is_wrapper_subclass(torch.zeros(2))
    assert not module.is_wrapper_subclass("text")


case(
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
    "compat",
    present=_plain_tensor_wraps_nothing,
)(_plain_tensor_wraps_nothing)


def _maps_nested(module: Any) -> None:
    tree = ([1, (2, 3)], {"a": 4})
    assert module.map_nested(lambda leaf: leaf + 1, tree) == ([2, (3, 4)], {"a": 5})


def _finds_leaves(module: Any) -> None:
    assert module.nested_leaves(([1, (2, 3)], {"a": 4})) == [1, 2, 3, 4]


case("torch.utils._pytree.tree_map", "compat", present=_maps_nested)(_maps_nested)
case("torch.utils._pytree.tree_leaves", "compat", present=_finds_leaves)(_finds_leaves)


def _knows_batch_norms(module: Any) -> None:
    assert isinstance(nn.BatchNorm2d(2), module.BatchNorm)
    assert not isinstance(nn.LayerNorm(2), module.BatchNorm)


def _knows_running_norms(module: Any) -> None:
    assert isinstance(nn.InstanceNorm1d(2), module.RunningNorm)
    assert not isinstance(nn.LayerNorm(2), module.RunningNorm)


def _knows_dropouts(module: Any) -> None:
    assert isinstance(nn.Dropout2d(), module.Dropout)
    assert not isinstance(nn.ReLU(), module.Dropout)


for _name, _known in (
    ("torch.nn.modules.batchnorm._BatchNorm", _knows_batch_norms),
    ("torch.nn.modules.batchnorm._NormBase", _knows_running_norms),
    ("torch.nn.modules.dropout._DropoutNd", _knows_dropouts),
):
    case(_name, "compat", present=_known)(_known)


def _finds_spellings(module: Any) -> None:
    found = module.find_aliases("softmax")
    assert {torch.softmax, Tensor.softmax, nn.functional.softmax} <= set(found)


case("torch._C._nn", "compat", present=_finds_spellings)(_finds_spellings)


def _sees_vmap(module: Any) -> None:
    seen = []
    torch.func.vmap(lambda x: seen.append(module.current_transform() is not None) or x)(_weight())
    assert seen == [True]
    assert module.current_transform() is None


@case("torch._C._functorch.peek_interpreter_stack", "compat", present=_sees_vmap)
def _sees_no_transform(module: Any) -> None:
    assert module.current_transform() is None


def _shares_storage(module: Any) -> None:
    x = torch.zeros(2, 2)
    assert module.storage_address(x) == module.storage_address(x[1])
    assert module.storage_address(x) != module.storage_address(torch.zeros(2, 2))


case("torch.UntypedStorage._cdata", "tensor_values", present=_shares_storage)(_shares_storage)


def _numbers_rise(module: Any) -> None:
    first = _weight() * 2
    second = first + 1
    assert module.node_number(first.grad_fn) < module.node_number(second.grad_fn)
    assert len(list(module.walk_graph([second.grad_fn], after=-1))) == 2


@case("torch._C._FunctionBase._sequence_nr", "autograd_graph", present=_numbers_rise)
def _order_unknown(module: Any) -> None:
    loss = _weight() * 2 + 1
    assert len(list(module.walk_graph([loss.grad_fn]))) == 3
    assert list(module.walk_graph([loss.grad_fn], after=0)) == [loss.grad_fn]


def _in_saved_tensor_hooks(module: Any) -> bool:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        return bool(module.saved_tensor_hooks_active())


def _hooks_seen(module: Any) -> None:
    assert _in_saved_tensor_hooks(module)
    assert not module.saved_tensor_hooks_active()


@case("torch._C._autograd._top_saved_tensors_default_hooks", "autograd_graph", present=_hooks_seen)
def _checkpointing_seen(module: Any) -> None:
    assert not _in_saved_tensor_hooks(module)
    seen = []
    run = lambda x: seen.append(module.saved_tensor_hooks_active()) or x * 2  # noqa: E731
    torch.utils.checkpoint.checkpoint(run, _weight(), use_reentrant=False)
    assert seen == [True]


def _autocast_seen(module: Any) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module.autocast_dtype("cpu") == "bfloat16"
    assert module.autocast_dtype("cpu") is None


case("torch._C._RestorePythonTLSSnapshot", "runtime_state", present=_autocast_seen)(_autocast_seen)


def _nodes_in_backward(module: Any) -> list[Any]:
    seen: list[Any] = []
    x = _weight()
    y = x * 2
    y.register_hook(lambda gradient: seen.append(module.running_node()))
    y.sum().backward()
    return seen


def _node_known(module: Any) -> None:
    (node,) = _nodes_in_backward(module)
    assert node is not None
    assert module.running_node() is None


@case("torch._C._current_autograd_node", "runtime_state", present=_node_known)
def _node_unknown(module: Any) -> None:
    assert _nodes_in_backward(module) == [None]


def _last_number(module: Any) -> None:
    from headway.torch_adapters.autograd_graph import node_number

    made = _weight() * 2
    assert module.last_node_number() == node_number(made.grad_fn)


@case("torch._C._autograd._get_sequence_nr", "runtime_state", present=_last_number)
def _no_number(module: Any) -> None:
    assert module.last_node_number() == -1


# Modes.


class _Heard(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def _function_modes_off(module: Any) -> None:
    with _Heard() as heard, module.no_function_modes():
        torch.add(torch.ones(1), 1)
    assert heard.names == []


@case("torch._C.DisableTorchFunction", "modes", present=_function_modes_off)
def _function_modes_stay(module: Any) -> None:
    with _Heard() as heard, module.no_function_modes():
        torch.add(torch.ones(1), 1)
    assert "add" in heard.names


def _ops_seen(module: Any, *, inside: Callable[[], Any] | None = None) -> list[str]:
    class Ops(module.TorchDispatchMode):  # type: ignore[misc, name-defined]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    x = torch.ones(1)
    with Ops():
        if inside is None:
            x.add(1)
        else:
            with inside():
                x.add(1)
    return seen


def _ops_observed(module: Any) -> None:
    assert len(_ops_seen(module)) == 1


@case("torch.utils._python_dispatch.TorchDispatchMode", "modes", present=_ops_observed)
def _no_op_observed(module: Any) -> None:
    assert _ops_seen(module) == []


def _dispatch_modes_off(module: Any) -> None:
    assert _ops_seen(module, inside=module.no_dispatch_modes) == []


def _python_dispatch_off(module: Any) -> None:
    assert _ops_seen(module, inside=module.no_python_dispatch) == []


@case("torch._C._DisableTorchDispatch", "modes", present=_python_dispatch_off)
def _modes_taken_off_singly(module: Any) -> None:
    assert _ops_seen(module, inside=module.no_python_dispatch) == []


@case("torch.utils._python_dispatch._disable_current_modes", "modes", present=_dispatch_modes_off)
def _dispatch_modes_stay(module: Any) -> None:
    assert len(_ops_seen(module, inside=module.no_dispatch_modes)) == 1


def _autocast_switched_off(module: Any) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), module.no_autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


case("torch._C._DisableAutocast", "modes", present=_autocast_switched_off)(_autocast_switched_off)


def _current_mode_known(module: Any) -> None:
    mode = module.OutermostDispatchMode()
    assert module.current_dispatch_mode() is None
    assert mode.enter_outermost()
    try:
        assert module.current_dispatch_mode() is mode
    finally:
        assert mode.leave_outermost()
    assert module.current_dispatch_mode() is None


@case(
    "torch.utils._python_dispatch._get_current_dispatch_mode", "modes", present=_current_mode_known
)
def _current_mode_unknown(module: Any) -> None:
    mode = module.OutermostDispatchMode()
    assert mode.enter_outermost()
    try:
        assert module.current_dispatch_mode() is None
    finally:
        assert mode.leave_outermost()


@case("torch._C._len_torch_dispatch_stack", "modes", present=_current_mode_known)
def _mode_is_not_entered(module: Any) -> None:
    mode = module.OutermostDispatchMode()
    assert not mode.enter_outermost()
    assert mode.leave_outermost()


def _heard_in_pause(module: Any) -> list[str]:
    heard = _Heard()
    with heard:
        with module.ModePause(heard):
            torch.add(torch.ones(1), 1)
        before = list(heard.names)
        torch.mul(torch.ones(1), 1)
    assert "mul" in heard.names
    return before


def _pause_hears_nothing(module: Any) -> None:
    assert _heard_in_pause(module) == []


def _pause_does_nothing(module: Any) -> None:
    assert "add" in _heard_in_pause(module)


for _name in (
    "torch._C._len_torch_function_stack",
    "torch._C._get_function_stack_at",
    "torch._C._pop_torch_function_stack",
    "torch._C._push_on_torch_function_stack",
):
    case(_name, "modes", present=_pause_hears_nothing)(_pause_does_nothing)


# The interpreter.


def _frames_known(module: Any) -> None:
    frame = module.current_frame(0)
    assert frame.f_code.co_name == "_frames_known"
    assert module.find_frame(frame.f_code, frame, 1) is frame
    place = op_frames.read_frame_context(1, in_backward=False).place
    assert place is not None
    assert place.function == "_frames_known"


@case("sys._getframe", "frames", present=_frames_known)
def _no_frames(module: Any) -> None:
    assert module.current_frame(0) is None
    assert list(module.walk_callers(module.current_frame(1))) == []
    assert list(module.running_frames({})) == []
    assert module.find_caller(("_no_frames",), 5) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op_frames, "current_frame", module.current_frame)
        assert op_frames.read_frame_context(1, in_backward=False) == op_frames.FrameContext()


@case(
    "torch.autograd.Variable._execution_engine",
    "process_groups.bucket_order",
    present=lambda module: _runs_backward(module._engine),
)
def _no_order_is_restored(module: Any) -> None:
    replica = _Replica()
    replica.log = {"iteration": 0}
    module.find_replicas = lambda models: [replica]
    module._run_backward = lambda *_: pytest.fail("no backward pass can be run")
    assert module.restore([], [[[0, 1, 2]]]) == "of this version of torch"


def _runs_backward(engine: Any) -> None:
    leaf = torch.ones(1, requires_grad=True)
    engine.run_backward((leaf * 3,), (torch.ones(1),), False, False, (), True, True)
    assert leaf.grad is not None
    assert leaf.grad.item() == 3


class _Replica(nn.Module):
    static_graph = find_unused_parameters = False
    mixed_precision = None
    parameters_to_ignore: frozenset[str] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.ParameterList([torch.zeros(1), torch.zeros(1), torch.zeros(1)])
        self.log = {"iteration": 7, "rebuilt_per_bucket_param_indices": "1 0, 2"}

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return self.log


def _order_is_read(module: Any) -> None:
    assert module._buckets(_Replica()) == [[1, 0], [2]]
    assert callable(nn.parallel.DistributedDataParallel._get_ddp_logging_data)


@case(
    "torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data",
    "process_groups.bucket_order",
    present=_order_is_read,
)
def _no_order_is_known(module: Any) -> None:
    replica = _Replica()
    assert module._buckets(replica) == []
    module.find_replicas = lambda models: [replica]
    assert module.restore([], [[[1, 0], [2]]]) == "of this version of torch"


def _reducer_is_made(module: Any) -> None:
    names = inspect.signature(module._make_reducer).parameters
    assert list(names)[1:] == [
        *("parameters", "expect_sparse_gradient", "param_to_name_mapping", "static_graph")
    ]


def _no_reducer_is_replaced(module: Any) -> None:
    replica = _Replica()
    replica.static_graph, replica.log = True, {"iteration": 0}
    module.find_replicas = lambda models: [replica]
    assert module.restore([], [[[1, 0], [2]]]) == "with static_graph=True"


case(
    "torch.nn.parallel.DistributedDataParallel._ddp_init_helper",
    "process_groups.bucket_order",
    present=_reducer_is_made,
)(_no_reducer_is_replaced)
case(
    "torch.distributed._register_comm_hook",
    "process_groups.bucket_order",
    present=lambda module: callable(module._register_hook),
)(_no_reducer_is_replaced)


def _objects_found(module: Any) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert any(item is optimizer for item in module.find_optimizers())
    assert any(item is model for item in module.find_models([optimizer]))


@case("gc.get_objects", "live_objects", present=_objects_found)
def _no_objects(module: Any) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert module.find_optimizers() == []
    assert module.find_models([optimizer]) == []


def _random_state_restored(module: Any) -> None:
    import numpy as np

    state = module.RngState()
    drawn = (random.random(), float(np.random.rand()), float(torch.rand(())))
    state.restore()
    assert drawn == (random.random(), float(np.random.rand()), float(torch.rand(())))
    for draw in (random.random, lambda: random.gauss(0, 1), random.random, lambda: None):
        draw()
        assert module.RngState()._python == random.getstate()


case("ctypes.string_at", "rng", present=_random_state_restored)(_random_state_restored)


# Loaders, ranks, recorded ops, clipping.


def _dataset_found(module: Any) -> None:
    dataset = TensorDataset(torch.arange(8))
    assert module.find_worker_dataset() is None
    iterator = iter(DataLoader(dataset, num_workers=1))
    try:
        assert module.find_worker_dataset() is dataset
    finally:
        del iterator


@case(
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter",
    "loaders.batch_fetching",
    present=_dataset_found,
)
def _no_dataset(module: Any) -> None:
    assert module.find_worker_dataset() is None


def _store_needs_a_group(module: Any) -> None:
    with pytest.raises(ValueError, match="process group"):
        module.default_store()


@case(
    "torch.distributed.distributed_c10d._get_default_store",
    "process_groups.rank_group",
    present=_store_needs_a_group,
)
def _no_store(module: Any) -> None:
    assert module.default_store() is None


def _numbered(module: Any) -> list[int]:
    """The number of groups before, within and after a group of the guard's own."""
    world = distributed_c10d._world
    numbers = [world.group_count]
    with module._numbered_apart():
        numbers.append(world.group_count)
    return [*numbers, world.group_count]


def _own_groups_are_numbered_apart(module: Any) -> None:
    before, within, after = _numbered(module)
    assert before == after < within


@case(
    "torch.distributed.distributed_c10d._world",
    "process_groups.rank_agreement",
    present=_own_groups_are_numbered_apart,
)
def _own_groups_are_numbered_like_others(module: Any) -> None:
    before, within, after = _numbered(module)
    assert before == within == after


def _negated(module: Any) -> None:
    assert module._negative_view(torch.tensor([1.0, -2.0])).tolist() == [-1.0, 2.0]


case("torch._neg_view", "op_recording.op_replay", present=_negated)(_negated)


class _Listener:
    def __init__(self) -> None:
        self.totals: list[float] = []

    def clipping(self, parameters: Any, norms: Any, total: Tensor) -> None:
        self.totals.append(float(total))

    def clipped(self, total: Tensor, max_norm: float) -> None: ...


def _clip(module: Any) -> list[float]:
    heard = _Listener()
    x = torch.ones(1, requires_grad=True)
    x.grad = torch.full((1,), 2.0)
    module.add_listener(heard)
    try:
        nn.utils.clip_grad_norm_([x], 1.0)
    finally:
        module.remove_listener(heard)
    assert float(x.grad) == pytest.approx(1.0)
    return heard.totals


def _clipping_observed(module: Any) -> None:
    assert _clip(module) == [2.0]


for _name in ("_get_total_norm", "_clip_grads_with_norm_"):

    def _clipping_works(module: Any, name: str = _name) -> None:
        # torch calls the function by this name, so it cannot be removed: `wrap_function` does what
        # it does for a name that is missing.
        unwatched = pytest.MonkeyPatch()
        unwatched.setattr(
            module,
            "wrap_function",
            lambda owner, attribute, wrap: (
                module.install_patch(owner, attribute, wrap(getattr(owner, attribute)))
                if attribute != name
                else lambda: None
            ),
        )
        with unwatched.context():
            assert _clip(module) == ([] if name == "_clip_grads_with_norm_" else [2.0])
        unwatched.undo()

    case(f"torch.nn.utils.clip_grad.{_name}", "patching", present=_clipping_observed)(
        _clipping_works
    )


def _own_stack_is_read(module: Any) -> None:
    found = module.read_stack_of(threading.get_ident())
    assert found is not None
    assert found.place is not None
    assert found.place.file == __file__
    assert module.fingerprint_stack(threading.get_ident())


@case("sys._current_frames", "process_state.thread_stacks", present=_own_stack_is_read)
def _no_stack_is_read(module: Any) -> None:
    assert module.read_stacks() == []
    assert module.read_stack_of(threading.get_ident()) is None
    assert module.fingerprint_stack(threading.get_ident()) == ()


def _collectives_are_listed(module: Any) -> None:
    assert isinstance(module.read_collectives(10), list)


@case(
    "torch._C._distributed_c10d._dump_fr_trace",
    "process_state.flight_recorder",
    present=_collectives_are_listed,
)
def _no_collective_is_listed(module: Any) -> None:
    assert module.read_collectives(10) == []


def _worker_fetches(module: Any, dataset: Any) -> int:
    """Batches of a worker that were got under watch; the worker itself is this process."""
    watched = []

    def watch(fetch: Callable[[], Any]) -> Any:
        watched.append(1)
        return fetch()

    loader: DataLoader[Any] = DataLoader(dataset, batch_size=2)
    with pytest.MonkeyPatch.context() as patch, module.watch_worker_fetches(watch):
        patch.setattr(module, "get_worker_info", lambda: SimpleNamespace(id=0))
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    return len(watched)


class _Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


for _name, _dataset in (("_MapDatasetFetcher", range(4)), ("_IterableDatasetFetcher", _Stream())):

    def _fetches_are_watched(module: Any, dataset: Any = _dataset) -> None:
        assert _worker_fetches(module, dataset) >= 2

    def _fetches_are_not_watched(module: Any, dataset: Any = _dataset) -> None:
        assert _worker_fetches(module, dataset) == 0

    case(
        f"torch.utils.data._utils.fetch.{_name}",
        "loaders.batch_fetching",
        present=_fetches_are_watched,
    )(_fetches_are_not_watched)


def _alone_with_other_ranks(module: Any) -> None:
    assert module.can_run_alone()


for _name in ("FakeWork", "Work.boxed"):

    def _not_alone(module: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "in_a_group", lambda: True)
            assert not module.can_run_alone()

    case(
        f"torch._C._distributed_c10d.{_name}",
        "process_groups.local_collectives",
        present=_alone_with_other_ranks,
    )(_not_alone)


def _notes_are_left(module: Any) -> None:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    store.set("headway/origin/3/1", "line 12")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_default_store", lambda: store)
        patch.setattr(module.dist, "get_rank", lambda: 0)
        patch.setattr(module.dist, "get_world_size", lambda: 2)
        module.leave_note("origin/3", "line 7")
        assert store.get("headway/origin/3/0") == b"line 7"
        assert module.read_notes("origin/3", 0.0) == {1: "line 12"}


@case(
    "torch.distributed.distributed_c10d._get_default_store",
    "process_groups.rank_agreement",
    present=_notes_are_left,
)
def _no_notes(module: Any) -> None:
    module.leave_note("origin/3", "line 7")
    assert module.read_notes("origin/3", 0.0) == {}


def _exit_handlers_run(module: Any) -> None:
    assert module._run_exit_handlers is atexit._run_exitfuncs
    assert _left_with(module) == [3]


def _left_with(module: Any) -> list[int]:
    """The statuses with which the process would have ended; handlers of this process wait."""
    left: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        if module._run_exit_handlers is atexit._run_exitfuncs:
            patch.setattr(module, "_run_exit_handlers", lambda: None)
        patch.setattr(module, "exit_immediately", left.append)
        patch.setattr(module.logging, "shutdown", lambda: None)
        patch.setattr(module, "_status", 3)
        module._leave()
    return left


@case(
    "atexit._run_exitfuncs",
    "device_failure.lost_device",
    present=_exit_handlers_run,
)
def _no_exit_handlers_run(module: Any) -> None:
    ran: list[int] = []
    atexit.register(ran.append, 1)
    try:
        assert _left_with(module) == [3]
    finally:
        atexit.unregister(ran.append)
    assert ran == []


_SEGMENT = {
    "device": 0,
    "blocks": [
        {
            "state": "active_allocated",
            "size": 512,
            "frames": [{"filename": __file__, "line": 7, "name": "build"}],
        },
        {"state": "inactive", "size": 1024},
    ],
}


def _holders_are_read(module: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_snapshot", lambda: {"segments": [_SEGMENT]})
        (holder,) = module.holders_by_line(0)
    assert (holder["file"], holder["line"], holder["bytes"]) == (__file__, 7, 512)


@case(
    "torch.cuda.memory._snapshot",
    "device_failure.device_memory",
    present=_holders_are_read,
)
def _no_holders_are_read(module: Any) -> None:
    assert module.holders_by_line(0) == []


def _record_with_cuda(module: Any, on: bool) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        return bool(module.record_allocations(on))


def _allocations_are_recorded(module: Any) -> None:
    asked: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_record_history", lambda **options: asked.append(options))
        assert _record_with_cuda(module, True)
        assert not _record_with_cuda(module, False)
    assert [options["enabled"] for options in asked] == ["state", None]
    inspect.signature(torch.cuda.memory._record_memory_history).bind(**asked[0])


@case(
    "torch.cuda.memory._record_memory_history",
    "device_failure.device_memory",
    present=_allocations_are_recorded,
)
def _allocations_are_not_recorded(module: Any) -> None:
    assert not _record_with_cuda(module, True)


def test_every_private_part_has_a_case_here() -> None:
    assert set(PRIVATE_PARTS) == set(CASES)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_private_part_is_there_or_is_done_without(name: str) -> None:
    module, present, missing = CASES[name]
    part = PRIVATE_PARTS[name]
    assert part.without
    real = importlib.import_module(f"{PACKAGE}.{module}")
    (present if part.present else missing)(real)


@pytest.mark.parametrize("name", sorted(CASES))
def test_without_a_private_part_it_degrades_as_documented(name: str) -> None:
    module, _, missing = CASES[name]
    with without(module, name) as copy:
        assert not PRIVATE_PARTS[name].present
        missing(copy)


def test_a_name_that_torch_lacks_gives_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_parts, "PRIVATE_PARTS", {})
    for name in (
        "torch._nothing.of_it",
        "torch.Tensor._nothing",
        "torch._C._nothing",
        "gc.nothing",
    ):
        assert private_part(name, "instead", without="nothing happens") == "instead"
        assert not private_parts.PRIVATE_PARTS[name].present


# Private attributes of objects: an object without them stands for another torch.


def _bare(**attributes: Any) -> Any:
    return SimpleNamespace(**attributes)


def test_modules_without_private_dicts_have_no_buffers() -> None:
    assert compat.module_buffers(_bare()) == {}
    assert compat.non_persistent_buffers(_bare()) == []
    assert not compat.is_registered(_bare(), "weight", 1)
    assert not compat.has_backward_hooks(_bare())
    assert list(compat.spectral_norms(nn.Linear(2, 2))) == []


def test_modules_tell_their_buffers_and_hooks() -> None:
    norm = nn.BatchNorm1d(2)
    norm.register_buffer("seen", torch.zeros(1), persistent=False)
    assert {"running_mean", "seen"} <= compat.module_buffers(norm).keys()
    assert compat.non_persistent_buffers(norm) == ["seen"]
    assert compat.is_registered(norm, "weight", norm.weight)
    norm.register_full_backward_hook(lambda *_: None)
    assert compat.has_backward_hooks(norm)
    (found,) = compat.spectral_norms(nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)))
    assert [item.dim() for item in found] == [2, 1, 1]


def test_nodes_tell_what_they_saved() -> None:
    from headway.torch_adapters.autograd_graph import (
        input_metadata,
        saved_value,
        saved_value_errors,
    )

    node: Any = torch.softmax(_weight(), 0).grad_fn
    assert saved_value(node, "nothing", "dim") in (0, 2**64)
    assert tuple(input_metadata(node)[0].shape) == (3,)
    assert saved_value_errors(node) == []
    assert saved_value(_bare(), "dim") is None
    assert input_metadata(_bare()) == ()


def test_a_scaler_without_private_state_has_no_known_scale() -> None:
    bare, optimizer = _bare(), torch.optim.SGD([_weight()], lr=0.1)
    assert optimizer_adapter.current_scale(bare) is None
    assert optimizer_adapter.gradients_are_scaled(bare, optimizer)
    optimizer_adapter.rewind_scaler(bare, torch.ones(1))
    optimizer_adapter.ScalerSnapshot(bare).restore()
    assert vars(bare) == {}


def test_a_scaler_is_rewound_and_restored() -> None:
    weight = _weight()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = GradScaler("cpu", init_scale=8.0)
    scaler.scale(weight.sum()).backward()
    scale = optimizer_adapter.current_scale(scaler)
    assert scale is not None
    assert float(scale) == 8.0
    assert optimizer_adapter.gradients_are_scaled(scaler, optimizer)
    snapshot = optimizer_adapter.ScalerSnapshot(scaler)
    scaler.unscale_(optimizer)
    assert not optimizer_adapter.gradients_are_scaled(scaler, optimizer)
    optimizer_adapter.rewind_scaler(scaler, torch.tensor(4.0))
    assert scaler.get_scale() == 4.0
    assert optimizer_adapter.gradients_are_scaled(scaler, optimizer)
    snapshot.restore()
    assert scaler.get_scale() == 8.0


def test_an_autocast_region_tells_whether_it_is_on() -> None:
    assert autocast_regions.is_region_enabled(torch.autocast("cpu"))
    assert not autocast_regions.is_region_enabled(torch.autocast("cpu", enabled=False))
    assert autocast_regions.is_region_enabled(_bare())


def test_replicas_without_private_state_are_left_alone() -> None:
    rank_group.sync_buffers(_bare())
    assert local_gradients._comm_hooks(_bare()) == []
    assert not local_gradients._takes_uneven_steps(_bare())
    assert sharded_tensors._fsdp_state(_bare()) is None


def test_clipping_functions_are_restored() -> None:
    before = (clip_grad._get_total_norm, clip_grad._clip_grads_with_norm_)
    _clip(importlib.import_module(f"{PACKAGE}.patching"))
    assert (clip_grad._get_total_norm, clip_grad._clip_grads_with_norm_) == before


@pytest.mark.parametrize("name", ["softmax_backward", "log_softmax_backward"])
def test_numerics_computes_gradients_without_private_ops(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = getattr(_torch_compat, name)
    x, gradient = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    result = torch.softmax(x, 1) if name == "softmax_backward" else torch.log_softmax(x, 1)
    with_op = function(gradient, result, 1)
    bare: Any = ModuleType("torch")
    bare.ops = _bare(aten=_bare())
    monkeypatch.setattr(_torch_compat, "torch", bare)
    torch.testing.assert_close(function(gradient, result, 1), with_op)
