"""What to do about exceptions of torch whose message says what is wrong.

Each entry is a pattern of the message and a remedy; the groups of the pattern fill the remedy.
"""

from __future__ import annotations

import re

_KNOWN = (
    (
        r"backward through the graph a second time",
        "Detach what one step passes to the next (`state = state.detach()`), or add the losses and "
        "call `backward()` once.",
    ),
    (
        r"does not require grad and does not have a grad_fn",
        "The loss has no graph: look for `.item()`, `.detach()`, `.numpy()`, `argmax` or "
        "`torch.no_grad()` between the model and the loss.",
    ),
    (
        r"grad can be implicitly created only for scalar",
        "Reduce the loss to one number before `backward()`: `loss.mean()`.",
    ),
    (
        r"modified by an inplace operation",
        "Replace the in-place operation (`+=`, `relu_`, an assignment to a slice) by one that "
        "creates a tensor; `torch.autograd.set_detect_anomaly(True)` names the line.",
    ),
    (
        r"leaf Variable that requires grad is being used in an in-place",
        "Change parameters under `torch.no_grad()`.",
    ),
    (
        r"mat1 and mat2 shapes cannot be multiplied \(\d+x(?P<got>\d+) and (?P<wants>\d+)x\d+\)",
        "The layer expects {wants} features and gets {got}: set `in_features={got}`, or check what "
        "is flattened before it.",
    ),
    (
        r"weight of size .* expected input.* to have (?P<wants>\d+) channels, but got (?P<got>\d+)",
        "The layer expects {wants} channels and gets {got}: convert the images, or move the "
        "channels to axis 1 (`x.permute(0, 3, 1, 2)`).",
    ),
    (
        r"same dtype, but got Double|expected scalar type Float but found Double|"
        r"expected .*Double but .*Float|Found dtype Double but expected Float",
        "Convert the data to float32 (`x = x.float()`): NumPy makes float64.",
    ),
    (
        r"expected scalar type Long but found|expected target dtype to be Long|"
        r"nll_loss.* not implemented for '(Int|Float)'",
        "Class labels must be int64: `target.long()`.",
    ),
    (
        r"Found dtype Long but expected Float|result type Float can't be cast to .*Long",
        "Convert the targets to float32: `target.float()`.",
    ),
    (
        r"Expected all tensors to be on the same device",
        "Move the batch to the device of the model (`x = x.to(device)`); tensors that a module "
        "creates need `device=x.device` or `register_buffer`.",
    ),
    (
        r"index out of range in self",
        "An index is past the end of an embedding: compare the largest id, and the longest "
        "sequence for positions, with `num_embeddings`.",
    ),
    (
        r"Target (?P<label>-?\d+) is out of bounds",
        "Label {label} has no output: labels must be 0 to C-1, where C is the number of outputs of "
        "the last layer.",
    ),
    (
        r"Expected more than 1 value per channel when training",
        "BatchNorm cannot train on one row: pass `drop_last=True` to the DataLoader.",
    ),
    (
        r"Expected input batch_size \(\d+\) to match target batch_size",
        "Outputs and targets have different numbers of rows: look for a fixed batch size, and for "
        "`view` or `flatten` that mix rows with other axes.",
    ),
    (
        r"[Tt]arget size .*torch\.Size\(\[\]\)",
        "`squeeze()` also removes a batch axis of size 1: name the axis, `squeeze(1)` or "
        "`squeeze(-1)`.",
    ),
    (
        r"[Tt]arget size .*(must be|different).* input size",
        "Give the outputs and the targets the same shape: `output.squeeze(1)` or "
        "`target.unsqueeze(1)`.",
    ),
    (
        r"multi-target not supported|0D or 1D target tensor expected",
        "`cross_entropy` takes class numbers of shape (N): `target.argmax(1)` for one-hot rows, "
        "`target.squeeze(1)` for a column.",
    ),
    (
        r"shape '\[.*\]' is invalid for input of size",
        "Use -1 for the batch axis in `view` or `reshape`: the last batch may be smaller.",
    ),
    (
        r"not compiled with CUDA enabled|No CUDA GPUs are available|no NVIDIA driver",
        "Call `torch.cuda` only if `torch.cuda.is_available()`; on a machine with a GPU, install "
        "torch with CUDA.",
    ),
    (
        r"(?s)Error\(s\) in loading state_dict.*(?P<prefix>module\.|_orig_mod\.)",
        "The keys of the checkpoint begin with `{prefix}` and those of the model do not, or the "
        "other way round: remove or add it, or save the state of the model that is wrapped.",
    ),
    (
        r"Error\(s\) in loading state_dict",
        "Build the model with the settings of the checkpoint: names or sizes of its layers differ.",
    ),
    (
        r"Weights only load failed",
        "If you trust the file, load it with `weights_only=False`; `headway scan` shows what it "
        "contains.",
    ),
    (
        r"maximum recursion depth exceeded",
        "Write the recursion as a loop, or limit the depth of the input; "
        "`sys.setrecursionlimit()` allows more.",
    ),
    (
        r"start a new process before the\s+current process has finished",
        "Start the training under `if __name__ == '__main__':`.",
    ),
    (
        r"[Cc]an't (get|pickle) (local |attribute )|cannot pickle",
        "Lambdas, local functions, locks and open files cannot be pickled: use functions of a "
        "module, and save `state_dict()` rather than the object.",
    ),
)
_COMPILED = tuple((re.compile(pattern), remedy) for pattern, remedy in _KNOWN)


def known_remedy(text: str | None) -> str | None:
    """What to do about an exception with this message; None if it is not known."""
    for pattern, remedy in _COMPILED:
        if found := pattern.search(text or ""):
            return remedy.format(**found.groupdict()) if found.groupdict() else remedy
    return None
