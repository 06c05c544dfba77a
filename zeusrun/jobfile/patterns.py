"""The patterns of ``metrics.pattern``: those that are ready, and the rule for one's own."""

from __future__ import annotations

import difflib
import re

READY = {
    "torchvision": (
        r"^Epoch: \[(?P<epoch>\d+)\](?:.*?\sloss: (?P<train_loss>\S+))?",
        r"^(?:Test:| \*) +Acc@1 (?P<acc1>\S+) Acc@5 (?P<acc5>\S+)",
        r"^Test: EMA +Acc@1 (?P<ema_acc1>\S+) Acc@5 (?P<ema_acc5>\S+)",
        r"^mean IoU: (?P<mean_iou>\S+)",
    ),
    "nanogpt": (
        r"^step (?P<step>\d+): train loss (?P<train_loss>\S+), val loss (?P<val_loss>\S+)",
        r"^iter (?P<step>\d+): loss (?P<loss>\S+)",
    ),
    "torchtitan": (
        r"(?<!validate )step: *(?P<step>\d+) +loss: *(?P<loss>\S+)",
        r"validate step: *(?P<step>\d+) +loss: *(?P<val_loss>\S+)",
    ),
    "megatron": (
        r"iteration +(?P<step>\d+)/ *\d+ \|.*?lm loss: (?P<lm_loss>\S+)",
        r"loss at iteration (?P<step>\d+)\b(?! on test).*?\| lm loss value: (?P<val_loss>\S+)",
    ),
    "pytorch_examples": (
        r"^Train Epoch: (?P<epoch>\d+) .*Loss: (?P<train_loss>\S+)",
        r"^Test set: Average loss: (?P<test_loss>\S+), Accuracy: \d+/\d+ \((?P<accuracy>\S+)%\)",
        r"^\| end of epoch +(?P<epoch>\d+) \|.*\| valid loss +(?P<val_loss>\S+)",
        r"^====> Test set loss: (?P<test_loss>\S+)",
    ),
}
"""By name: the lines of torchvision's references, nanoGPT, torchtitan, Megatron-LM, and of
PyTorch's examples: MNIST, word_language_model, VAE and those made like them."""

COUNTERS = frozenset({"epoch", "step"})
"""The groups that count and are no metrics."""


def check_pattern(text: str) -> None:
    """Raise ``ValueError`` if a text is neither a ready pattern nor one with named groups."""
    if text in READY:
        return
    try:
        groups = re.compile(text).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is no regular expression: {error} in '{text}'") from error
    if not groups:
        close = difflib.get_close_matches(text, READY, n=1)
        hint = "give the number a name, such as 'val_acc=(?P<val_acc>\\S+)'"
        hint = f"did you mean {close[0]!r}?" if close else hint
        raise ValueError(f"has no named group in '{text}'; {hint}")


def find_metrics(patterns: tuple[str, ...]) -> list[str]:
    """Return the groups of patterns that are metrics, each once."""
    texts = [text for pattern in patterns for text in READY.get(pattern, (pattern,))]
    names = {name: None for text in texts for name in re.compile(text).groupindex}
    return [name for name in names if name not in COUNTERS]
