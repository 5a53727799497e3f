"""A script runs as if files had other contents, and nothing is written."""

from __future__ import annotations

import json
import linecache
import runpy
import sys
from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.fix.fresh_run import overlay_from, write_overlay
from headway.torch_adapters.source import OVERLAID, SourceFile
from headway.torch_adapters.source_overlay import run_overlaid


def test_the_script_and_its_modules_are_overlaid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, module = tmp_path / "train_overlaid.py", tmp_path / "loss_overlaid.py"
    module.write_text("value = 1\n")
    script.write_text("import loss_overlaid\nseen = [0, loss_overlaid.value, __name__]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert runpy.run_path(str(script))["seen"][1] == 1  # leaves a .pyc that must not be used
    monkeypatch.delitem(sys.modules, "loss_overlaid")
    main = sys.modules["__main__"]
    write_overlay(
        str(tmp_path / "files.json"),
        {
            str(script): b"import loss_overlaid\nseen = [2, loss_overlaid.value, __name__]\n",
            str(module): b"value = 5\n",
        },
    )
    with overlay_from(tmp_path / "files.json"):
        ran = run_overlaid(str(script))
        assert linecache.getline(str(module), 1) == "value = 5\n"
        file = SourceFile.read(str(module))
        assert file is not None
        assert file.text == "value = 5\n"
    assert ran is not None
    assert ran["seen"] == [2, 5, "__main__"]
    assert sys.modules["__main__"] is main
    monkeypatch.delitem(sys.modules, "loss_overlaid")
    assert OVERLAID == {}
    assert linecache.getline(str(module), 1) == "value = 1\n"
    assert run_overlaid(str(script)) is None
    assert module.read_text() == "value = 1\n"


@pytest.mark.parametrize("text", ["", "[1]", json.dumps({"a": 1})])
def test_a_damaged_overlay_is_a_usage_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "files.json").write_text(text)
    with pytest.raises(UsageError, match="--overlay"), overlay_from(tmp_path / "files.json"):
        pass
