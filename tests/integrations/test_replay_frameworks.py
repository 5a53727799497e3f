"""`headway replay` of scripts whose loop is a framework's: the adapter hands the step over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from headway.cli.main import cli

HUGGING_FACE = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from headway.integrations.transformers import HeadwayCallback

ACCUMULATE = int(sys.argv[1])
STEPS = 6


class Weighted(LlamaForCausalLM):
    def forward(self, input_ids, labels, weight, **kwargs):
        out = super().forward(input_ids=input_ids, labels=labels, **kwargs)
        out.loss = (out.loss * weight.log()).mean()
        return out


class Counting(torch.utils.data.Dataset):
    def __len__(self):
        return STEPS * 4 * ACCUMULATE

    def __getitem__(self, at):
        ids = (torch.arange(9) + at) % 24
        labels = torch.where(torch.arange(9) > at % 5, ids, -100)
        weight = 0.0 if at == 13 * ACCUMULATE else 2.0
        return {"input_ids": ids, "labels": labels, "weight": torch.tensor(weight)}


class InOrder(Trainer):
    def _get_train_sampler(self, *args):
        return None


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, max_position_embeddings=16, bos_token_id=0, eos_token_id=0,
    attention_dropout=0.2,
)
args = TrainingArguments(
    output_dir="out", use_cpu=True, per_device_train_batch_size=4, max_steps=STEPS,
    gradient_accumulation_steps=ACCUMULATE, logging_steps=1, report_to=[], save_strategy="no",
    disable_tqdm=True, logging_nan_inf_filter=False,
)
guarded = [] if "plain" in sys.argv else [HeadwayCallback(run_dir="runs/first")]
trainer = InOrder(
    model=Weighted(config), args=args, train_dataset=Counting(), callbacks=guarded
)
trainer.train()
print("LOSS", *(entry.get("loss") for entry in trainer.state.log_history))
"""

LIGHTNING = """
import sys
import lightning.pytorch as pl
import torch
from headway.integrations.lightning import HeadwayCallback

ACCUMULATE = int(sys.argv[1])


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
        )
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, weight = batch
        loss = (self.net(x) ** 2 * weight.log()).mean()
        self.log("train_loss", loss)
        self.losses.append(float(loss.detach()) / ACCUMULATE)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


pl.seed_everything(0)
x, weight = torch.randn(24 * ACCUMULATE, 3), torch.full((24 * ACCUMULATE,), 2.0)
weight[13 * ACCUMULATE] = 0.0
data = torch.utils.data.TensorDataset(x, weight)
module = Module()
guarded = [] if "plain" in sys.argv else [HeadwayCallback(run_dir="runs/first")]
trainer = pl.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False,
    enable_model_summary=False, enable_checkpointing=False, callbacks=guarded,
    accumulate_grad_batches=ACCUMULATE,
)
trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
each = [module.losses[at : at + ACCUMULATE] for at in range(0, len(module.losses), ACCUMULATE)]
print("LOSS", *(sum(losses) for losses in each))
"""

INCIDENT = Path("runs/first/incidents/1-step3")
Replay = Callable[..., Result]


@dataclass(frozen=True)
class Home:
    """A folder with a script that has been run, and its incident."""

    folder: Path
    text: str
    accumulate: int

    @property
    def script(self) -> Path:
        return self.folder / "train.py"

    @property
    def mended(self) -> str:
        return self.text.replace("weight.log()", "(weight + 1e-3).log()")

    def run(self, *args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "train.py", str(self.accumulate), *args],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=180,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(
    scope="module",
    params=[(HUGGING_FACE, 1), (HUGGING_FACE, 2), (LIGHTNING, 1), (LIGHTNING, 2)],
    ids=["hugging-face", "hugging-face-accumulating", "lightning", "lightning-accumulating"],
)
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Home:
    text, accumulate = request.param
    made = Home(tmp_path_factory.mktemp("home"), text, accumulate)
    made.script.write_text(text)
    made.run()
    assert (made.folder / INCIDENT).is_dir()
    return made


@pytest.fixture
def replay(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replay]:
    path = list(sys.path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def call(*args: object) -> Result:
        monkeypatch.chdir(home.folder)
        return CliRunner().invoke(cli, ["replay", *map(str, args)], prog_name="headway")

    with torch.random.fork_rng():
        yield call
    sys.path[:] = path


pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is dep:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning"),
]


def test_the_script_reproduces_with_the_same_verdict(replay: Replay, home: Home) -> None:
    home.script.write_text(home.text)
    before = contents(home.folder / "runs")
    result = replay(INCIDENT, "--format", "json")
    assert result.exit_code == 1, result.stderr
    found = json.loads(result.stdout)
    now, then = found["explanation"], found["recorded"]
    assert then["origins"][0]["kind"] == "log-of-zero"
    assert then["origins"][0]["place"]["source"].strip().endswith("weight.log()).mean()")
    assert then["origins"][0]["rows"] == [1 if home.accumulate == 1 else 2]
    for name in ("origins", "samples", "guilt", "nature", "headline", "summary"):
        assert now[name] == then[name], name
    assert contents(home.folder / "runs") == before, "a replay leaves nothing in the run"


def test_the_mended_script_is_cured(replay: Replay, home: Home) -> None:
    """And its loss is the one that the mended training has at that very step: weights, dropout,
    batches and what the loss is divided by are those of the incident."""
    home.script.write_text(home.mended)
    result = replay(INCIDENT, "--format", "json")
    assert result.exit_code == 0, result.stderr
    [line] = [line for line in home.run("plain").splitlines() if line.startswith("LOSS")]
    expected = float(line.split()[1 + 3])
    losses = json.loads(result.stdout)["losses"]
    assert len(losses) == home.accumulate
    assert sum(losses) == pytest.approx(expected, rel=1e-3)


def test_a_step_that_crashes(replay: Replay, home: Home) -> None:
    raising = "out.loss = " if "out.loss" in home.text else "loss = "
    text = home.text.replace(raising, f"1 / 0\n        {raising}", 1)
    home.script.write_text(text)
    assert replay(INCIDENT).exit_code == 3


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
