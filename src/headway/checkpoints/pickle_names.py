"""Names in pickles that are known to run code, and the modules that they are in."""

from __future__ import annotations

import sys


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DATA_MODULES = _words(
    "__future__ _collections _collections_abc abc argparse array bisect calendar cmath "
    "collections collections.abc copyreg dataclasses datetime decimal enum fractions inspect "
    "ipaddress itertools logging math numbers pathlib pathlib._local statistics string "
    "textwrap time types typing uuid zoneinfo"
)
"""Modules of the standard library whose other classes are unknown rather than dangerous."""

CODE_NAMES = _words(
    "CodeType FileHandler FunctionType "
    "Popen __builtins__ __call__ __code__ __getattribute__ __globals__ __import__ __reduce__ "
    "__subclasses__ _compile_and_eval _eval_type _evaluate _legacy_load _method_from_src "
    "check_call check_output chmod chown compile cpp_extension eval exec exec_module execfile "
    "from_file from_pretrained fromfile load_from_checkpoint push_to_hub save_pretrained tofile "
    "execl execle execlp execlpe execv execve execvp execvpe fork forkpty full_load getoutput "
    "getstatusoutput hardlink_to import_module kill killpg link load_library load_module "
    "makedirs mkdir mkfifo mknod open open_code popen popen2 posix_spawn posix_spawnp putenv "
    "read_bytes read_text remove removedirs rename rmdir rmtree run_command run_module "
    "run_path runcode runsource runstring savetxt spawnl spawnle spawnlp spawnlpe spawnv "
    "spawnve spawnvp spawnvpe startfile symlink symlink_to sympify system timeit touch "
    "truncate unlink unsafe_load urlopen urlretrieve write_bytes write_text"
)
"""Names that say what they do in any library."""

CODE_LIBRARIES = _words(
    "IPython accelerate.test_utils accelerate.utils.other aiohttp attr._make boto3 botocore "
    "cffi cloudpathlib cloudpickle ctypes dill distutils fabric fsspec gc gcsfs git httpx "
    "huggingface_hub invoke jinja2 joblib.load joblib.numpy_pickle keras.models keras.saving "
    "keras.src.legacy keras.src.models keras.src.saving "
    "lightning.fabric.utilities.cloud_io lightning_fabric.utilities.cloud_io mako "
    "numba.core.serialize numexpr numpy.ctypeslib numpy.distutils numpy.f2py numpy.fromfile "
    "numpy.fromregex numpy.genfromtxt numpy.lib numpy.load numpy.loadtxt numpy.memmap "
    "numpy.save numpy.testing pandas.core.computation pandas.eval pandas.io pandas.read_ "
    "paramiko pexpect pip pkg_resources plumbum requests s3fs setuptools sh "
    "sklearn.utils._joblib smart_open sympy sympy.parsing tensorflow.io "
    "tensorflow.keras.models tensorflow.python.ops tensorflow.raw_ops tensorflow.saved_model "
    "torch._C torch._dynamo torch._inductor torch._jit_internal torch._package torch.classes "
    "torch.compile torch.cuda.memory.memory_viz torch.distributed.elastic "
    "torch.distributed.launch torch.distributed.rpc.api torch.distributed.run torch.export "
    "torch.from_file torch.fx torch.fx.experimental torch.fx.graph_module._exec_with_source "
    "torch.fx.graph_module._forward_from_src torch.fx.graph_module.reduce_graph_module "
    "torch.fx.graph_module.reduce_package_graph_module torch.hub torch.jit torch.library "
    "torch.load torch.multiprocessing.spawn torch.onnx torch.ops torch.package torch.save "
    "torch.serialization._legacy_load torch.serialization.load "
    "torch.storage.UntypedStorage.from_file torch.testing torch.utils._config_module "
    "torch.utils.benchmark torch.utils.bottleneck torch.utils.collect_env "
    "torch.utils.cpp_extension torch.utils.data.datapipes torch.utils.model_zoo "
    "torch.utils.show_pickle "
    "transformers.agents transformers.dynamic_module_utils transformers.pipelines "
    "transformers.tools transformers.utils.import_utils urllib3 yaml.full_load yaml.load "
    "yaml.unsafe_load"
)
"""Functions of other packages that load, fetch or run; a name starts with one of these."""

STDLIB_MODULES = frozenset(getattr(sys, "stdlib_module_names", ())) | _words(
    "stdlib_module_names nt posix commands popen2 imp asynchat asyncore smtpd distutils "
    "_pyrepl httplib urllib2 xmlrpclib "
    "lib2to3 idlelib test __builtin__ _winapi msvcrt winreg pipes crypt telnetlib cgi nntplib"
)

RISKY_MODULES = _words(
    "asyncio builtins code codeop ctypes ftplib functools gc glob http importlib inspect io "
    "linecache marshal multiprocessing nt operator os pathlib pickle posix pty runpy shutil "
    "signal smtplib socket subprocess sys tempfile threading tokenize types urllib weakref"
)
"""Modules that are reached through others: a part of a dotted name, also with an underscore."""
