"""The allowlist of names in pickles: functions and classes that build data and do nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from headway.checkpoints.pickle_names import CODE_NAMES


def _names(modules: Iterable[str], names: str) -> set[tuple[str, str]]:
    return {(module, name) for module in modules for name in names.split()}


_TENSOR_TYPES = (
    "BFloat16 Bool Byte Char ComplexDouble ComplexFloat Double Float Half Int Long Short"
)
_QUANTIZED = "QInt32 QInt8 QUInt2x4 QUInt4x2 QUInt8"
_MATH_FUNCTIONS = (
    "abs acos add asin atan bilinear celu clamp clamp_max clamp_min conv1d conv2d conv3d cos "
    "dropout elu elu_ erf exp gelu glu hardshrink hardsigmoid hardswish hardswish_ hardtanh "
    "hardtanh_ leaky_relu leaky_relu_ linear log log1p log_sigmoid log_softmax logsigmoid matmul "
    "max mean min mish mul norm normalize pixel_shuffle pow prelu relu relu6 relu_ rrelu rsqrt "
    "scaled_dot_product_attention selu selu_ sigmoid sign silu silu_ sin softmax softmin softplus "
    "softshrink softsign sqrt square sub sum tanh tanhshrink threshold"
)
_NUMPY_TYPES = (
    "bool bool_ int8 int16 int32 int64 intc intp uint8 uint16 uint32 uint64 float16 float32 "
    "float64 float128 longdouble complex64 complex128 str_ bytes_ void object_ datetime64 "
    "timedelta64 ndarray dtype number generic floating integer"
)
_NUMPY_CORES = ("numpy.core", "numpy._core")

ALLOWED_NAMES = frozenset(
    _names(
        ["builtins"],
        "set frozenset list dict tuple int float complex bool str bytes bytearray object slice "
        "range xrange type NoneType Ellipsis NotImplemented getattr",
    )
    | _names(["collections"], "OrderedDict Counter defaultdict deque ChainMap UserDict UserList")
    | _names(["datetime"], "date datetime time timedelta timezone tzinfo")
    | _names(["_codecs"], "encode")
    | _names(["copyreg"], "_reconstructor __newobj__ __newobj_ex__")
    | _names(["decimal"], "Decimal Context")
    | _names(["fractions"], "Fraction")
    | _names(["uuid"], "UUID SafeUUID")
    | _names(["zoneinfo"], "ZoneInfo ZoneInfo._unpickle")
    | _names(["argparse"], "Namespace")
    | _names(["array"], "array _array_reconstructor")
    | _names(["random"], "Random")
    | _names(["re"], "_compile compile Pattern RegexFlag")
    | _names(["enum"], "Enum IntEnum Flag IntFlag")
    | _names(
        ["pathlib", "pathlib._local"],
        "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath",
    )
    | _names(["types"], "SimpleNamespace MappingProxyType GenericAlias UnionType NoneType")
    | _names(["functools"], "partial")
    | _names(["operator"], "itemgetter")
    | _names(["itertools"], "count repeat")
    | _names(["logging"], "getLogger Logger RootLogger")
    | _names(["io", "_io"], "BytesIO StringIO")
    | _names(["inspect"], "Signature Parameter _ParameterKind _empty")
    | _names(["dataclasses"], "Field _FIELD _MISSING_TYPE MISSING _FIELD_BASE")
    | _names(
        ["typing"],
        "Any Union Optional Callable Dict List Tuple Set FrozenSet Type Sequence Mapping Iterable "
        "Literal ClassVar Final Generic TypeVar",
    )
    | _names(["math", "cmath"], "inf nan pi e tau sqrt exp log sin cos tanh")
    | _names(["signal"], "Signals")
    | _names(["http"], "HTTPStatus")
    | _names(["weakref"], "WeakKeyDictionary WeakValueDictionary WeakSet")
    | _names(["torch", "torch.cuda"], " ".join(f"{kind}Storage" for kind in _TENSOR_TYPES.split()))
    | _names(
        ["torch", "torch.cuda", "torch.sparse", "torch.cuda.sparse"],
        " ".join(f"{kind}Tensor" for kind in _TENSOR_TYPES.split()),
    )
    | _names(["torch"], " ".join(f"{kind}Storage" for kind in _QUANTIZED.split()))
    | _names(
        ["torch"],
        "Size Tensor device dtype layout memory_format Generator strided sparse_coo sparse_csr "
        "sparse_csc sparse_bsr sparse_bsc contiguous_format channels_last channels_last_3d "
        "preserve_format bool qint8 qint32 quint8 quint4x2 quint2x4 per_tensor_affine "
        "per_channel_affine per_tensor_symmetric per_channel_symmetric "
        "per_channel_affine_float_qparams",
    )
    | _names(["torch._C"], "_VariableFunctionsClass _VariableFunctions")
    | {("torch._C", f"_VariableFunctionsClass.{name}") for name in _MATH_FUNCTIONS.split()}
    | {("torch._C", f"_VariableFunctions.{name}") for name in _MATH_FUNCTIONS.split()}
    | _names(["torch", "torch._C._nn", "torch.nn.functional"], _MATH_FUNCTIONS)
    | _names(
        ["torch._utils"],
        "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter "
        "_rebuild_parameter_v2 _rebuild_parameter_with_state _rebuild_qtensor "
        "_rebuild_sparse_tensor _rebuild_sparse_csr_tensor _rebuild_nested_tensor "
        "_rebuild_meta_tensor_no_storage _rebuild_device_tensor_from_cpu_tensor "
        "_rebuild_device_tensor_from_numpy _rebuild_wrapper_subclass _rebuild_xla_tensor",
    )
    | _names(["torch._tensor"], "Tensor _rebuild_from_type _rebuild_from_type_v2")
    | _names(["torch.nn.parameter"], "Parameter Buffer UninitializedParameter UninitializedBuffer")
    | _names(["torch.serialization"], "_get_layout")
    | _names(["torch.storage"], "TypedStorage UntypedStorage _load_from_bytes")
    | _names(["torch.jit._pickle"], "restore_type_tag build_intlist build_tensorlist")
    | _names(["torch.jit._pickle"], "build_doublelist build_boollist build_tensor_from_id")
    | _names(["torch.utils._ordered_set"], "OrderedSet")
    | _names(["torch.nested._internal.nested_tensor"], "NestedTensor _rebuild_njt")
    | _names(["torch._dynamo.decorators"], "_DimRange")
    | _names(["torch.utils.hooks"], "RemovableHandle")
    | _names(["torch._tensor_str"], "PRINT_OPTS")
    | _names(["torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"], "GradScaler OptState")
    | _names(
        ["torch.distributed.checkpoint.filesystem"],
        "_StorageInfo _StoragePrefix _StorageWriterTransforms",
    )
    | _names(["torch.distributed.checkpoint.metadata"], "TensorProperties._load_global")
    | _names(["torch.distributed.device_mesh"], "DeviceMesh _MeshEnv")
    | _names(["torch.distributed.tensor._dtensor_spec"], "DTensorSpec TensorMeta ShardOrderEntry")
    | _names(["torch.distributed.tensor"], "DTensor")
    | _names(["numpy", "numpy.core.multiarray", "numpy._core.multiarray"], _NUMPY_TYPES)
    | _names([f"{core}.multiarray" for core in _NUMPY_CORES], "_reconstruct scalar")
    | _names([f"{core}.numeric" for core in _NUMPY_CORES], "_frombuffer")
    | _names([f"{core}.numerictypes" for core in _NUMPY_CORES], _NUMPY_TYPES)
    | _names(
        ["numpy.random._pickle"],
        "__randomstate_ctor __generator_ctor __bit_generator_ctor",
    )
    | _names(["numpy.random._mt19937"], "MT19937")
    | _names(["numpy.random._pcg64"], "PCG64 PCG64DXSM")
    | _names(["numpy.random._philox"], "Philox")
    | _names(["numpy.random._sfc64"], "SFC64")
    | _names(["numpy.random.bit_generator"], "SeedSequence __pyx_unpickle_SeedSequence")
    | _names(["deepspeed.utils.tensor_fragment"], "fragment_address tensor_fragment")
    | _names(["joblib.numpy_pickle"], "NumpyArrayWrapper")  # an array follows: joblib_arrays.py
    | _names(["pandas.core.indexes.base"], "_new_Index Index")
    | _names(["pandas._libs.internals"], "_unpickle_block BlockManager")
    | _names(["pandas.core.frame"], "DataFrame")
    | _names(["pandas.core.series"], "Series")
    | _names(["pandas.core.internals.managers"], "BlockManager SingleBlockManager")
)
"""(module, name) of functions and classes that build data and do nothing else."""

_DTYPE = re.compile(r"(?:u?int|b?float|complex|bits)\d\w*")
_EXCEPTION = re.compile(r"[A-Z][A-Za-z]*(?:Error|Exception|Warning|Interrupt)|StopIteration")
_CLASS = re.compile(r"_?[A-Z][A-Za-z0-9_]*")

ALLOWED_CLASSES = (
    "torch.nn.modules",
    "torch.nn.utils.parametrize",
    "torch.nn.utils.parametrizations",
    "torch.nn.utils.weight_norm",
    "torch.optim",
    "torch.ao.quantization",
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.planner",
    "torch.distributed._mesh_layout",
    "torch.distributed.tensor.placement_types",
    "torch.distributed._tensor.placement_types",
    "torch.distributed._shard.sharded_tensor.metadata",
    "torch.distributed._shard.metadata",
    "torch.distributed.fsdp.api",
    "torch.nn.parallel",
    "transformers.models",
    "transformers.configuration_utils",
    "transformers.generation.configuration_utils",
    "transformers.activations",
    "transformers.training_args",
    "transformers.trainer_utils",
    "transformers.trainer_callback",
    "transformers.trainer_pt_utils",
    "transformers.debug_utils",
    "transformers.modeling_outputs",
    "transformers.modeling_layers",
    "transformers.pytorch_utils",
    "transformers.tokenization_utils_base",
    "transformers.utils.generic",
    "transformers.utils.quantization_config",
    "accelerate.state",
    "accelerate.utils.dataclasses",
    "accelerate.optimizer",
    "accelerate.scheduler",
    "peft.tuners",
    "peft.config",
    "peft.mapping",
    "peft.utils.peft_types",
    "peft.peft_model",
    "trl.trainer",
    "timm.models",
    "timm.layers",
    "timm.optim",
    "timm.scheduler",
    "torchvision.models",
    "torchvision.ops",
    "torchvision.transforms",
    "torchaudio.models",
    "torchaudio.transforms",
    "torch_geometric.nn",
    "torch_geometric.data",
    "torchmetrics",
    "pytorch_lightning.callbacks",
    "pytorch_lightning.utilities.parsing",
    "lightning.pytorch.callbacks",
    "lightning.pytorch.utilities.parsing",
    "lightning.fabric.utilities.data",
    "lightning.fabric.utilities.types",
    "lightning_fabric.utilities.data",
    "lightning_utilities.core.enums",
    "deepspeed.runtime",
    "deepspeed.utils.tensor_fragment",
    "omegaconf",
    "megatron.core",
    "megatron.training",
    "megatron.arguments",
    "fairseq.dataclass",
    "ultralytics.nn",
    "ultralytics.utils.IterableSimpleNamespace",
    "diffusers.models",
    "diffusers.schedulers",
    "diffusers.configuration_utils",
    "sentence_transformers.models",
    "tokenizers",
    "sklearn.linear_model",
    "sklearn.preprocessing",
    "sklearn.tree",
    "sklearn.ensemble",
    "sklearn.cluster",
    "sklearn.decomposition",
    "sklearn.pipeline",
    "scipy.sparse",
    "yacs.config",
    "easydict",
    "addict.addict",
    "bitsandbytes.nn",
    "bitsandbytes.functional",
    "apex.normalization",
    "safetensors",
    "__torch__",
)
"""Where packages keep the models, layers, settings and states of ordinary checkpoints. Their
classes may be rebuilt from saved attributes, which does not run `__init__`. A class is
recognised by its name: `Linear`, not `load`."""

ENUM_MODULES = (
    "transformers.training_args",
    "transformers.trainer_utils",
    "transformers.debug_utils",
    "transformers.utils.generic",
    "transformers.utils.quantization_config",
    "accelerate.utils.dataclasses",
    "peft.utils.peft_types",
    "deepspeed.runtime",
    "lightning_utilities.core.enums",
    "megatron.core",
    "omegaconf",
    "fairseq.dataclass",
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.fsdp.api",
    "torch.distributed.tensor.placement_types",
    "torch.distributed._tensor.placement_types",
    "torch.distributed._shard",
    "__torch__",
)
"""Of these, enums may also be called with one value, as pickle does for a member."""

_ENUM = re.compile(
    r"\w*(?:Backend|Dtype|Enum|Environment|Format|Kind|Level|Method|Mode|Names|Option|Policy|Scheme|"
    r"Stage|Status|Strategy|Style|Types?|Version)"
)
"""How the enums of these packages are called."""

NEVER_CALLED = frozenset(
    _names(["enum"], "Enum IntEnum Flag IntFlag")
    | _names(["torch.distributed.device_mesh"], "DeviceMesh _MeshEnv")
)
"""Allowed as classes. A call creates a class, or a process group."""

GATEWAYS = frozenset(
    _names(["torch.storage"], "_load_from_bytes") | _names(["builtins"], "getattr type")
)
"""Allowed where the pickle itself calls them with arguments that it contains. As values they lead
to code: an object whose state has `append=_load_from_bytes` loads what is appended to it."""


CALLERS = frozenset(
    [
        ("torch.storage", "_load_from_bytes"),
        ("torch._tensor", "_rebuild_from_type"),
        ("torch._tensor", "_rebuild_from_type_v2"),
        ("builtins", "getattr"),
        ("_codecs", "encode"),
        ("copyreg", "_reconstructor"),
        ("copyreg", "__newobj__"),
        ("copyreg", "__newobj_ex__"),
        ("numpy.random._pickle", "__generator_ctor"),
        ("numpy.random._pickle", "__randomstate_ctor"),
        ("numpy.random._pickle", "__bit_generator_ctor"),
    ]
)
"""Functions that call, or load, what they are given: their arguments must be understood."""


def is_allowed(module: str, name: str) -> bool:
    """Whether a name is known to build data only."""
    if (module, name) in ALLOWED_NAMES or module.partition(".")[0] == "__torch__":
        return True
    if module == "torch":
        return _DTYPE.fullmatch(name) is not None
    if module == "builtins":
        return _EXCEPTION.fullmatch(name) is not None
    if module == "numpy.dtypes":
        return name.endswith("DType") and is_class_name(name)
    return is_rebuilt_class(module, name)


def is_class_name(name: str) -> bool:
    """Whether it is spelled as classes are: `Linear`, not `load` and not `Linear.load`."""
    return _CLASS.fullmatch(name) is not None


def is_rebuilt_class(module: str, name: str) -> bool:
    """Whether it is a class that a package keeps in ordinary checkpoints."""
    # A module also has the classes that it imports. A graph module compiles code.
    if not is_class_name(name) or name in CODE_NAMES or name.endswith("GraphModule"):
        return False
    return _is_in(module, ALLOWED_CLASSES)


def may_be_called(module: str, name: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a call of an allowed name builds data only: `__init__` of a class may do more."""
    if (module, name) in NEVER_CALLED:
        return False
    if (module, name) == ("builtins", "type"):
        return len(arguments) == 1  # with three it creates a class
    if (module, name) in ALLOWED_NAMES or not is_rebuilt_class(module, name):
        return True
    if not _is_in(module, ENUM_MODULES):
        return False
    own = module.partition(".")[0] in ("torch", "__torch__")
    plain = len(arguments) == 1 and isinstance(arguments[0], (str, int, float, tuple))
    return own or (plain and _ENUM.fullmatch(name) is not None)


def _is_in(module: str, places: Iterable[str]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)
