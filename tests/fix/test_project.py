"""Files that may be edited: positions, encodings, line endings, refusals, writing and restoring."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.core.findings import SourceEdit
from headway.fix.project import EditRefused, Project, WrittenFiles, is_installed
from headway.torch_adapters.source import SourceFile


def edit_word(path: Path, word: str, new: str) -> SourceEdit:
    file = SourceFile.read(str(path))
    assert file is not None
    start = file.text.index(word)
    return file.edit(start, start + len(word), new)


@pytest.mark.parametrize(
    "content",
    [
        b"# caf\xc3\xa9 \xe2\x86\x92 \xf0\x9f\x98\x80\nx = 1 / n  # why\n",
        b"\xef\xbb\xbfx = 1 / n\r\ny = 2\r\n",
        b"# -*- coding: latin-1 -*-\ns = '\xe9'\nx = 1 / n\n",
        b"x = 1 / n",
    ],
    ids=["utf-8", "bom and crlf", "latin-1", "no newline at the end"],
)
def test_everything_outside_of_the_edit_keeps_its_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(content)
    assert Project(path).edited([edit_word(path, "1 / n", "1 / max(n, 1)")], {}) == {
        os.path.realpath(path): content.replace(b"1 / n", b"1 / max(n, 1)")
    }


def test_several_edits_of_several_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n")
    (tmp_path / "b.py").write_text("z = 3\n")
    edits = [
        edit_word(tmp_path / "a.py", "1", "10"),
        edit_word(tmp_path / "a.py", "2", "20"),
        edit_word(tmp_path / "b.py", "3", "30"),
    ]
    found = Project(tmp_path / "a.py").edited(edits, {})
    assert [*found.values()] == [b"x = 10\ny = 20\n", b"z = 30\n"]


def test_refusals(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    (root / "src").mkdir()
    script, outside = root / "src/train.py", tmp_path / "other.py"
    script.write_text("x = 1\n")
    outside.write_text("x = 1\n")
    project = Project(script)
    assert project.root == Path(os.path.realpath(root))
    with pytest.raises(EditRefused, match="outside of the project"):
        project.edited([edit_word(outside, "1", "2")], {})
    library = root / "lib/site-packages/torch_extra.py"
    library.parent.mkdir(parents=True)
    library.write_text("x = 1\n")
    with pytest.raises(EditRefused, match="installed package"):
        project.edited([edit_word(library, "1", "2")], {})
    edit = edit_word(script, "1", "2")
    script.write_text("x  = 1\n")
    with pytest.raises(EditRefused, match="has changed since it was read"):
        project.edited([edit], {})
    late = Project(script, since=script.stat().st_mtime - 5)
    with pytest.raises(EditRefused, match="has changed since the script started"):
        late.edited([edit_word(script, "1", "2")], {})
    with pytest.raises(EditRefused, match="cannot be edited"):
        project.edited([edit_word(script, "1", "(")], {})
    link = root / "link.py"
    link.symlink_to(outside)
    with pytest.raises(EditRefused, match="outside of the project"):
        project.edited([edit_word(link, "1", "2")], {})


def test_torch_is_installed_and_a_script_is_not(tmp_path: Path) -> None:
    import torch

    assert is_installed(os.path.realpath(torch.__file__))
    assert is_installed(os.path.realpath(os.__file__))
    assert not is_installed(str(tmp_path / "train.py"))


def test_a_diff_is_unified_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_bytes(b"x = 1\ny = 2")
    project = Project(path)
    new = project.edited([edit_word(path, "2", "3")], {})
    assert project.diff_between({}, new) == (
        "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n x = 1\n"
        "-y = 2\n\\ No newline at end of file\n+y = 3\n\\ No newline at end of file\n"
    )


def test_written_files_are_restored_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"x = 1\r\n")
    path.chmod(0o750)
    files = WrittenFiles({str(path): b"x = 2\r\n"})
    files.write()
    assert path.read_bytes() == b"x = 2\r\n"
    assert path.stat().st_mode & 0o777 == 0o750
    assert files.restore() == []
    assert path.read_bytes() == b"x = 1\r\n"
    assert [item.name for item in tmp_path.iterdir()] == ["train.py"]
    files.write()
    path.write_bytes(b"mine\n")
    assert files.restore() == [str(path)]
    assert path.read_bytes() == b"mine\n"
