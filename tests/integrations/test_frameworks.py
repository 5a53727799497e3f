"""Adapters bring in nothing but their own framework, and say how to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headway

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("adapter", "absent", "named"),
    [
        ("transformers", ("transformers",), "transformers"),
        ("lightning", ("lightning", "pytorch_lightning"), "lightning"),
        ("accelerate", ("accelerate",), "accelerate"),
        ("ray", ("ray",), "ray"),
    ],
)
@pytest.mark.slow
def test_a_missing_framework_is_said_with_the_command_that_installs_it(
    adapter: str, absent: tuple[str, ...], named: str
) -> None:
    told = python(
        WITHOUT.format(names=absent)
        + f"""
from headway import HeadwayError
try:
    import headway.integrations.{adapter}
except ImportError as error:
    assert isinstance(error, HeadwayError), type(error)
    print(error)
"""
    )
    assert told == (
        f"headway.integrations.{adapter} needs {named}, which is not installed: "
        f"pip install 'headway[{adapter}]'"
    )


@pytest.mark.slow
def test_a_framework_that_is_broken_says_so_itself() -> None:
    told = python(
        WITHOUT.format(names=("tqdm",))
        + """
try:
    import headway.integrations.transformers
except ImportError as error:
    print(type(error).__name__, error.name)
"""
    )
    assert told == "ModuleNotFoundError tqdm"


def test_the_package_itself_imports_no_framework() -> None:
    loaded = python(
        "import sys, headway.integrations\n"
        "print([name for name in ('torch', 'transformers', 'lightning', 'accelerate', 'ray')"
        " if name in sys.modules])"
    )
    assert loaded == "[]"


@pytest.mark.slow
def test_an_adapter_is_there_after_a_plain_import() -> None:
    assert python("import headway; print(headway.integrations.deepspeed.watch.__name__)") == (
        "watch"
    )
    with pytest.raises(AttributeError, match="has no attribute 'jax'"):
        _ = headway.integrations.jax
