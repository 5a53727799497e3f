"""The incident on disk: what was written is read, damage is noticed, strangers stay strangers."""

from __future__ import annotations

import collections
import json
import math
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import lightly, mutated, quick_folder, thoroughly
from torch import Tensor

import headway
from headway.core.numbers import encode_numbers
from headway.errors import UnreadableInput, UsageError
from headway.explain.explanation import Explanation, Operand, Origin, Spike, Trial
from headway.explain.incident_file import incident_folder
from headway.explain.incident_file.packing import ChosenRows, Packed, pack
from headway.explain.incident_file.unpacking import needs_template, unpack
from headway.torch_adapters import nested_state, rng
from headway.torch_adapters.frames import Location

SOURCE = Path(__file__).read_text().splitlines()
LINE = 1 + SOURCE.index("import headway")

EXPLANATION = Explanation(
    step=12,
    symptom="nonfinite",
    nature="deterministic",
    headline="log(0).",
    summary="log(0) made the loss -Inf. Sample 3 holds a 0.",
    origins=(
        Origin(
            kind="log-of-zero",
            cause="log of 1 element that is exactly 0",
            phase="forward",
            op="log",
            module="head",
            place=Location(__file__, LINE, "loss_fn", "import headway"),
            inputs=(Operand("self", "computed", (8, 2), "float32", 0.0, 1.5, 0, 0, 1),),
            output=Operand("output", "computed", (8, 2), "float32", -1.0, math.inf, 0, 1, 0),
            rows=(3,),
            reached=("head.weight", "head.bias"),
        ),
    ),
    trials=(
        Trial("eps", "add a small number before the log", "cured"),
        Trial("bf16", "compute in bf16", "not cured", "still Inf"),
        Trial("math", "use math attention", "not tried", "there is no attention"),
    ),
    guilt="batch",
    samples=(4711, "NaN"),
    loss=math.nan,
)


OTHER = replace(EXPLANATION, origins=(replace(EXPLANATION.origins[0], batch=2),))
"""The step had more backward passes than batches."""


def make_state() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    return {
        "models": [{"state": model.state_dict(), "unlisted": {}}],
        "optimizers": [{"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": []}],
        "others": {"scaler": {"scale": 65536.0, "growth_factor": 2.0}},
    }


def written(folder: Path, batch: Any = None, **options: Any) -> Path:
    batch = (torch.arange(24.0).reshape(8, 3), torch.zeros(8)) if batch is None else batch
    given = {"batches": [batch], "rng": rng.capture(), "state": make_state(), "capture": "batch"}
    return incident_folder.write_incident(
        folder, options.pop("explanation", EXPLANATION), **{**given, **options}
    )


def equal(one: Any, other: Any) -> bool:
    """Bit for bit: values, classes, dtypes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and pickle.dumps(one.tolist()) == pickle.dumps(other.tolist())
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and equal(torch.tensor(one), torch.tensor(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other or one != one


@pytest.fixture
def as_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process was started with a script, whatever has started the tests."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)


# What was written is read.


def test_everything_comes_back(tmp_path: Path) -> None:
    x = torch.randn(8, 3)
    before = rng.capture()
    folder = written(tmp_path, {"x": x, "ids": list(range(8))}, rank=2, limit=4.5, rng=before)
    assert folder == tmp_path / "incidents" / "1-step12"
    found = incident_folder.read_incident(folder)
    assert (found.step, found.symptom, found.rank, found.limit) == (12, "nonfinite", 2, 4.5)
    [batch] = found.batches()
    assert equal(batch, {"x": x, "ids": list(range(8))})
    assert found.explanation.samples == (4711, "NaN"), "a name is no number"
    assert math.isnan(found.explanation.loss or 0)
    assert found.explanation.origins == EXPLANATION.origins
    assert found.explanation.trials == EXPLANATION.trials
    assert found.left_out == ()
    state = found.state()
    assert state is not None
    assert state.keys() == {"models", "others"}
    assert state["others"]["scaler"]["scale"] == 65536.0
    assert equal(found.rng(), before | {"python": list(before["python"])})


def test_the_index_is_strict_json_with_versions_and_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    monkeypatch.setattr(sys, "argv", [__file__, "--epochs", "3"])
    index = json.loads(
        (written(tmp_path) / "incident.json").read_text(), parse_constant=pytest.fail
    )
    assert index["schema"] == 1
    assert index["versions"].keys() == {"headway", "torch", "python", "device"}
    assert index["versions"]["headway"] == headway.__version__
    assert index["script"]["cwd"] == os.getcwd()
    assert index["script"]["argv"] == sys.argv[1:]
    assert index["explanation"]["loss"] == "NaN"


def test_samples_of_any_kind_can_be_written(tmp_path: Path) -> None:
    samples = (numpy.int64(3), ("a", 1), Path("x.png"), math.inf)
    folder = written(tmp_path, explanation=replace(EXPLANATION, samples=samples))
    assert incident_folder.read_incident(folder).explanation.samples == (
        3,
        ["a", 1],
        "x.png",
        "Infinity",
    )


def test_every_tensor_file_loads_safely(tmp_path: Path) -> None:
    folder = written(tmp_path)
    for name in ("batch.pt", "rng.pt", "state.pt"):
        torch.load(folder / name, weights_only=True)
    assert sorted(os.listdir(folder)) == [
        "README.md", "batch.pt", "incident.json", "rng.pt", "samples.json", "state.pt",
    ]  # fmt: skip


@pytest.mark.usefixtures("as_script")
def test_numbers_go_on_and_ranks_do_not_collide(tmp_path: Path) -> None:
    names = [written(tmp_path, explanation=replace(EXPLANATION, step=at)).name for at in (3, 9, 9)]
    assert names == ["1-step3", "2-step9", "3-step9"]
    assert "incidents/3-step9" in (tmp_path / "incidents" / "3-step9" / "README.md").read_text()


def test_a_failed_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nested_state, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        written(tmp_path)
    assert os.listdir(tmp_path / "incidents") == []


@pytest.mark.slow
def test_a_killed_writer_leaves_no_incident(tmp_path: Path) -> None:
    """The last thing it does before dying is to have everything but the name."""
    program = (
        "import os, sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "import test_incident_folder\n"
        "os.rename = lambda *names: os._exit(9)\n"
        "test_incident_folder.written(Path(sys.argv[1]))\n"
    )
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path), *paths], timeout=120)
    assert done.returncode == 9
    [left] = os.listdir(tmp_path / "incidents")
    assert left.startswith(".new-")
    assert written(tmp_path).name == "1-step12"


# Batches.

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(max_size=6)
    | st.binary(max_size=6)
)
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8,
          torch.bool, torch.complex64]  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    made = (values * 4).to(draw(st.sampled_from(DTYPES)))
    if made.is_floating_point() and made.numel() and draw(st.booleans()):
        made.view(-1)[0] = draw(st.sampled_from([math.nan, math.inf, -math.inf, -0.0]))
    way = draw(st.integers(0, 3))
    if way == 1 and made.ndim > 1:
        return made.transpose(0, 1)
    if way == 2 and made.ndim and made.shape[0] > 1:
        return made[1:]
    return made


arrays = st.builds(
    lambda seed, dtype: numpy.random.default_rng(seed).integers(0, 2, (2, 2)).astype(dtype),
    st.integers(0, 99),
    st.sampled_from(["float32", "int64", "bool", "uint8"]),
)
nested = st.recursive(
    scalars | tensors() | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@thoroughly
@given(nested)
def test_nested_batches_come_back_bit_for_bit(batch: Any) -> None:
    packed = pack(batch)
    assert packed.left == []
    assert not needs_template(packed)
    assert equal(unpack(packed), batch)
    assert equal(unpack(packed, batch), batch), "a batch is its own template"


@lightly
@given(nested, st.integers(0, 2))
def test_nested_batches_survive_the_disk(batch: Any, more: int) -> None:
    with quick_folder() as folder:
        given_ = [batch] * (more + 1)
        found = incident_folder.read_incident(written(folder, batches=given_))
        assert equal(found.batches(), given_)
        assert equal(found.batches(), given_), "reading twice is no different"


@thoroughly
@given(
    st.integers(1, 6).flatmap(
        lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1), min_size=1))
    ),
    st.integers(0, 5),
)
def test_guilty_rows_fill_the_batch(chosen: tuple[int, set[int]], width: int) -> None:
    size, rows = chosen
    x = torch.arange(size * width * 1.0).reshape(size, width)
    batch = {"x": x, "names": [f"n{at}" for at in range(size)], "scale": 0.5, "y": x.clone()}
    packed = pack(batch, ChosenRows(size, tuple(sorted(rows))))
    assert packed.data["x"].shape == (len(rows), width)
    assert packed.data["names"] == [f"n{at}" for at in sorted(rows)]
    found = unpack(packed)
    assert found["x"].shape == x.shape
    assert found["scale"] == 0.5
    for at in range(size):
        kept = int(found["names"][at].removeprefix("n"))
        assert kept in rows
        assert kept == at or at not in rows, "a guilty row stays where it was"
        assert torch.equal(found["x"][at], x[kept])


def test_only_guilty_rows_reach_the_disk(tmp_path: Path) -> None:
    secret = torch.full((8, 3), 123456.0)
    secret[3] = 0.5
    batch = {"x": secret, "names": [f"person{at}" for at in range(8)], "mask": torch.ones(5, 5)}
    folder = written(tmp_path, batch, capture="guilty-rows")
    found = incident_folder.read_incident(folder)
    assert found.rows_only
    [again] = found.batches()
    assert torch.equal(again["x"], torch.full((8, 3), 0.5))
    assert again["names"] == ["person3"] * 8
    assert again["mask"] is None
    assert [item.what for item in found.left_out] == ["batch['mask']"]
    raw = (folder / "batch.pt").read_bytes()
    assert torch.tensor(123456.0).numpy().tobytes() not in raw
    assert b"person4" not in raw
    assert "a replay repeats them" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"capture": "off"}, "private"),
        ({"most_bytes": 64}, "too large: 128 B (limit 64 B)"),
        ({"batches": []}, "no loader returned it"),
        (
            {"explanation": replace(EXPLANATION, origins=()), "capture": "guilty-rows"},
            "samples are unknown",
        ),
        (
            {"explanation": OTHER, "batches": [torch.ones(8)] * 2, "capture": "guilty-rows"},
            "2 batches",
        ),
        ({"batches": [torch.ones(2)], "capture": "guilty-rows"}, "cannot be separated"),
    ],
)
def test_why_the_data_were_not_kept(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    folder = written(tmp_path, **options)
    found = incident_folder.read_incident(folder)
    assert not (folder / "batch.pt").exists()
    assert found.batches() == []
    [reason] = [item.why for item in found.left_out if item.what == "the data"]
    assert why in reason


def test_of_several_batches_the_guilty_ones(tmp_path: Path) -> None:
    given_ = [torch.arange(4.0) + 10 * at for at in range(3)]
    folder = written(tmp_path, batches=given_, rows={1: [2]}, capture="guilty-rows")
    found = incident_folder.read_incident(folder)
    assert equal(found.batches(), [torch.full((4,), 12.0)])
    assert "2 of the step's 3 batches" in found.left_out[0].what


def test_weights_too_large_name_a_snapshot_instead(tmp_path: Path) -> None:
    for name in ("1-step5", "2-step10", "3-step15"):
        (tmp_path / "snapshots" / name).mkdir(parents=True)
        (tmp_path / "snapshots" / name / "state.json").write_text("{}")
    state = {"models": [{"state": {"w": torch.zeros(1000)}, "unlisted": {}}]}
    found = incident_folder.read_incident(written(tmp_path, state=state, most_bytes=1000))
    assert found.state() is None
    [reason] = [item.why for item in found.left_out if item.what == "the weights"]
    assert "too large: 3.9 KiB" in reason
    assert "snapshots/2-step10" in reason


def test_a_view_brings_only_itself(tmp_path: Path) -> None:
    everything = torch.zeros(1_000_000)
    folder = written(tmp_path, everything[:3])
    assert (folder / "batch.pt").stat().st_size < 10_000


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    tied = torch.zeros(100_000)
    state = {"models": [{"state": {"a": tied, "b": tied}, "unlisted": {}}]}
    folder = written(tmp_path, state=state, most_bytes=500_000)
    assert (folder / "state.pt").stat().st_size < 500_000


# Classes.


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Sample:
    x: Tensor
    length: int = 0


class Encoding(collections.UserDict):  # type: ignore[type-arg]
    """As the Hugging Face tokenizers have it: a mapping with attributes of its own."""

    def __init__(self, data: dict[str, Any], kind: str) -> None:
        super().__init__(data)
        self.kind = kind


class Odd:
    """Nothing anybody could store."""


@pytest.mark.parametrize(
    "make",
    [
        lambda t: Pair(t, t + 1),
        lambda t: Sample(t, int(t.sum())),
        lambda t: Encoding({"ids": t, "inner": {"mask": t}}, "bert"),
        lambda t: [Pair(t, t), {"a": Sample(t)}],
        lambda t: collections.OrderedDict(b=t, a=t),
    ],
)
def test_a_template_gives_the_classes_back(tmp_path: Path, make: Any) -> None:
    real, template = make(torch.ones(4)), make(torch.zeros(2))
    found = incident_folder.read_incident(written(tmp_path, real))
    assert found.needs_template
    [batch] = found.batches(template)
    assert type(batch) is type(real)
    assert repr(batch) == repr(real)
    if isinstance(real, Encoding):
        assert batch.kind == "bert"
        assert equal(template["ids"], torch.zeros(2)), "the template is left as it was"
    [bare] = found.batches()
    assert type(bare) in (dict, list, tuple)


def test_what_cannot_be_stored_is_listed_and_the_templates(tmp_path: Path) -> None:
    odd = Odd()
    batch = {"x": torch.ones(4), "odd": Odd(), "words": {"a", "b"}, "deep": [], "s": "text"}
    batch["deep"].append(batch["deep"])  # type: ignore[attr-defined]
    found = incident_folder.read_incident(written(tmp_path, batch))
    left = {item.what: item.why for item in found.left_out}
    assert "Odd" in left["batch['odd']"]
    assert "set" in left["batch['words']"]
    assert any("nested too deeply" in why for why in left.values())
    [bare] = found.batches()
    assert bare["odd"] is None
    [filled] = found.batches({"x": torch.zeros(4), "odd": odd, "words": set(), "deep": []})
    assert filled["odd"] is odd
    assert equal(filled["x"], torch.ones(4))


def test_data_that_cannot_be_looked_at_do_not_cost_the_rest(tmp_path: Path) -> None:
    class Broken(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise RuntimeError("gone")

    found = incident_folder.read_incident(written(tmp_path, Broken(x=1)))
    assert found.has_state
    assert "RuntimeError: gone" in found.left_out[0].why


@pytest.mark.parametrize(
    ("stored", "template"),
    [
        ((1, torch.ones(2)), {"x": torch.ones(2)}),
        ((torch.ones(2), torch.ones(2)), (torch.ones(2),)),
        ({"x": torch.ones(2)}, torch.ones(2)),
        (Pair(torch.ones(1), torch.ones(1)), (1, 2, 3)),
        (Sample(torch.ones(1)), Pair(torch.ones(1), torch.ones(1))),
    ],
)
def test_a_batch_of_another_form_does_not_fit(stored: Any, template: Any) -> None:
    with pytest.raises(UsageError, match="does not match the loader"):
        unpack(pack(stored), template)


def test_a_batch_that_asks_for_gradients_still_does(tmp_path: Path) -> None:
    found = incident_folder.read_incident(written(tmp_path, torch.ones(2, requires_grad=True)))
    assert found.batches()[0].requires_grad


def test_sparse_batches_are_kept(tmp_path: Path) -> None:
    sparse = torch.eye(3).to_sparse()
    [found] = incident_folder.read_incident(written(tmp_path, (sparse,))).batches()
    assert torch.equal(found[0].to_dense(), torch.eye(3))


def test_a_packed_batch_is_plain() -> None:
    packed = pack((torch.ones(4), ["a"] * 4), ChosenRows(4, (1,)))
    again = Packed.from_plain(packed.to_plain())
    assert again == packed or equal(again.data, packed.data)
    assert again.rows == packed.rows


# Damage.


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("whole"))


def everything_in(found: incident_folder.IncidentFolder) -> list[Any]:
    return [dict(found.index), found.batches(), found.state(), found.rng()]


def attempt(work: Callable[[], Any]) -> tuple[str, Any]:
    """(the clear error, None) or ("", the result); any other error passes."""
    try:
        return "", work()
    except UnreadableInput as error:
        return str(error), None


@lightly
@given(st.data(), st.randoms(use_true_random=False))
def test_damage_is_told_or_did_no_harm(
    whole: Path, data: st.DataObject, way: random.Random
) -> None:
    sound = everything_in(incident_folder.read_incident(whole))
    with quick_folder() as elsewhere:
        folder = elsewhere / "incident"
        shutil.copytree(whole, folder)
        victim = folder / data.draw(st.sampled_from(sorted(os.listdir(whole))))
        if data.draw(st.integers(0, 4)) == 0:
            victim.unlink()
        else:
            victim.write_bytes(mutated(victim.read_bytes(), way))
        told, found = attempt(lambda: everything_in(incident_folder.read_incident(folder)))
        assert equal(found, sound) if found is not None else victim.name in told
        assert len(told) < 600


@lightly
@given(st.data())
def test_a_single_flipped_bit(whole: Path, data: st.DataObject) -> None:
    """Random damage seldom leaves JSON that can be read; a bit in a digit does."""
    content = bytearray((whole / "incident.json").read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 6))
    with quick_folder() as elsewhere:
        folder = elsewhere / "incident"
        shutil.copytree(whole, folder)
        (folder / "incident.json").write_bytes(content)
        told, found = attempt(lambda: dict(incident_folder.read_incident(folder).index))
        sound = dict(incident_folder.read_incident(whole).index)
        assert equal(found, sound) if found is not None else "incident.json" in told


def test_foreign_folders(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(UnreadableInput, match="does not exist"):
        incident_folder.read_incident(tmp_path / "nowhere")
    with pytest.raises(UnreadableInput, match="is not an incident"):
        incident_folder.read_incident(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnreadableInput, match="is not an incident"):
        incident_folder.read_incident(tmp_path / "file")
    with pytest.raises(UnreadableInput, match=r"such as .*1-step12"):
        incident_folder.read_incident(whole.parents[1])
    with pytest.raises(UnreadableInput, match=r"such as .*1-step12"):
        incident_folder.read_incident(whole.parent)
    for text in ("[]", "{}", "null", "[" * 100_000, '{"seal": 1}', "\ufeff{}", "9" * 9000):
        (tmp_path / "incident.json").write_text(text)
        with pytest.raises(UnreadableInput):
            incident_folder.read_incident(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "upgrade"),
        ({"tool": "other"}, "not an incident of headway"),
        ({"step": None}, "can read"),
        ({"explanation": {"step": 1}}, "can read"),
        ({"explanation": {**EXPLANATION.to_dict(), "guilt": "the butler"}}, "can read"),
        ({"explanation": {**EXPLANATION.to_dict(), "summary": [1]}}, "can read"),
        ({"explanation": {**EXPLANATION.to_dict(), "trials": [{"key": "x"}]}}, "can read"),
        ({"files": {"../../secret": {}}}, "lists an unknown file"),
        ({"files": {"batch.pt": {}}}, "can read"),
        ({"files": []}, "can read"),
        ({"script": "rm -rf"}, "can read"),
        ({"script": {"file": 1, "cwd": "", "argv": [], "module": None}}, "can read"),
        ({"script": {"file": "x"}}, "can read"),
        ({"captured": {}}, "can read"),
        ({"versions": 1}, "can read"),
        ({"left_out": [1]}, "can read"),
    ],
)
def test_a_well_sealed_stranger(tmp_path: Path, whole: Path, change: Any, words: str) -> None:
    folder = tmp_path / "incident"
    shutil.copytree(whole, folder)
    index = incident_folder.checksummed_index.read_index(folder / "incident.json")
    incident_folder.checksummed_index.write_index(
        folder / "incident.json", encode_numbers({**index, **change})
    )
    with pytest.raises(UnreadableInput, match=words):
        incident_folder.read_incident(folder)


def test_a_hostile_pickle_runs_nothing(tmp_path: Path, whole: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "exploded"),))

    folder = tmp_path / "incident"
    shutil.copytree(whole, folder)
    index = incident_folder.checksummed_index.read_index(folder / "incident.json")
    index["files"]["state.pt"] = nested_state.save_file(folder / "state.pt", {"models": [Bomb()]})
    incident_folder.checksummed_index.write_index(folder / "incident.json", index)
    found = incident_folder.read_incident(folder)
    with pytest.raises(UnreadableInput, match="cannot be loaded safely"):
        found.state()
    assert not (tmp_path / "exploded").exists()


# The page.


@pytest.mark.usefixtures("as_script")
def test_the_page_says_it_all(tmp_path: Path) -> None:
    page = (written(tmp_path) / "README.md").read_text()
    for words in (
        "# Step 12: log in the forward pass",
        "log(0) made the loss -Inf. Sample 3 holds a 0.",
        f"`{EXPLANATION.origins[0].place}` in `loss_fn`",
        f"> {LINE} | import headway",
        f"  {LINE - 3} | ",
        f"  {LINE + 3} | ",
        "| `self`     | computed | 8 × 2 | float32 | 0 … 1.5",
        "rows of the batch: `3`",
        "samples of the data set: `4711`, `NaN`",
        "`head.weight`, `head.bias`",
        "- ✓ **cured**: add a small number",
        "- ✗ **not cured**: compute in bf16 (still Inf)",
        "- – **not tried**: use math attention (there is no attention)",
        "- caused by: the batch (it fails with other weights, too)",
        f"headway replay {tmp_path / 'incidents' / '1-step12'}",
        "headway explain HD101",
    ):
        assert words in page, words


def test_a_page_without_data_promises_no_replay(tmp_path: Path) -> None:
    page = (written(tmp_path, capture="off") / "README.md").read_text()
    assert "headway replay" not in page
    assert "this step cannot be replayed without its batch" in page
    assert "headway explain HD101" in page


def test_the_page_of_a_spike(tmp_path: Path) -> None:
    spike = Spike("box", (1, 2), layers=("head.weight",), growth=(412.0,))
    told = replace(EXPLANATION, origins=(), symptom="spike", spike=spike, trials=())
    page = (written(tmp_path, explanation=told, limit=3.0) / "README.md").read_text()
    assert "`head.weight`: 412 times its usual" in page
    assert "headway explain HD207" in page
    told = replace(told, spike=replace(spike, growth=()))
    page = (written(tmp_path, explanation=told, limit=3.0) / "README.md").read_text()
    assert "- parameters: `head.weight`" in page


def test_nothing_on_the_page_is_markup(tmp_path: Path) -> None:
    evil = "</b>![x](http://evil/)|`x`\n# Big\x1b[31m *no* www.evil.org"
    place = Location("```\n# gone`.py", 1, evil, f"```\n{evil}")
    told = replace(
        EXPLANATION,
        summary=evil,
        origins=(
            replace(
                EXPLANATION.origins[0],
                place=place,
                cause=evil,
                op=evil,
                module=evil,
                inputs=(Operand(evil, evil, (1,), evil),),
                reached=(evil,),
            ),
        ),
        trials=(Trial("x", evil, "not tried", evil),),
        notes=(evil, "1. one", "- two", "# three"),
        samples=(evil,),
    )
    page = (written(tmp_path, explanation=told) / "README.md").read_text()
    assert "\x1b" not in page
    assert "\n# Big" not in page
    html = rendered(page)
    for tag in ("<img", "<b>", "</b>", "<a ", "<em>"):
        assert tag not in html, tag
    assert html.count("<h1>") == 1


def rendered(page: str) -> str:
    """The page as HTML, where a Markdown reader is installed."""
    reader = pytest.importorskip("markdown_it")
    return str(reader.MarkdownIt("commonmark").enable("table").render(page))
