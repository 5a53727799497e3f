"""Loop: Hugging Face Trainer.

Fault: CTC with more labels than frames, in the forward pass; ops: ctc_loss.
"""

import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Clips(Dataset):
    def __init__(self):
        torch.manual_seed(107)
        self.frames = torch.randn(40, 12, 8)
        self.text = torch.randint(1, 6, (40, 9))
        self.length = torch.full((40,), 12)
        self.length[13] = 4

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {
            "frames": self.frames[index],
            "text": self.text[index, :5],
            "length": self.length[index],
        }


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 16, batch_first=True)
        self.head = nn.Linear(16, 6)

    def forward(self, frames, text, length):
        hidden, _ = self.rnn(frames)
        scores = self.head(hidden).log_softmax(dim=-1).transpose(0, 1)
        sizes = torch.full((len(text),), text.shape[1])
        loss = F.ctc_loss(scores, text, length, sizes)  # <- origin
        return {"loss": loss, "logits": scores.transpose(0, 1)}


args = TrainingArguments(
    tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    num_train_epochs=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
    remove_unused_columns=False,
    logging_steps=1,
    seed=3,
)
Trainer(model=Listener(), args=args, train_dataset=Clips()).train()
