"""The section ``metrics`` of a job file: where the metric is read, and by which patterns."""

from __future__ import annotations

import difflib
import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from zeusrun.jobfile.section import Section
from zeusrun.jobfile.values import SourceName, Template, goes_with

READY = {
    "torchvision": (
        r"^Epoch: \[(?P<epoch>\d+)\](?:.*?\sloss: (?P<train_loss>\S+))?",
        r"^(?:Test:| \*) +Acc@1 (?P<acc1>\S+)(?: Acc@5 (?P<acc5>\S+))?",
        r"^Test: EMA +Acc@1 (?P<ema_acc1>\S+)(?: Acc@5 (?P<ema_acc5>\S+))?",
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
    "pytorch_examples": (
        r"^Train Epoch: (?P<epoch>\d+) .*Loss: (?P<train_loss>\S+)",
        r"^Test set: Average loss: (?P<test_loss>\S+), Accuracy: \d+/\d+ \((?P<accuracy>\S+)%\)",
        r"^\| end of epoch +(?P<epoch>\d+) \|.*\| valid loss +(?P<val_loss>\S+)",
        r"^====> Test set loss: (?P<test_loss>\S+)",
    ),
}
"""By name: the lines of torchvision's references, nanoGPT, torchtitan, and of
PyTorch's examples: MNIST, word_language_model, VAE and those made like them."""

COUNTERS = frozenset({"epoch", "step"})
"""The groups that count and are no metrics."""

_FILES = ("csv", "jsonl")
_IN_FILE = goes_with("source", *_FILES)


def check_pattern(text: str) -> None:
    """Raise ``ValueError`` if a text is neither a ready pattern nor a regex with named groups."""
    if text in READY:
        return
    try:
        groups = re.compile(text).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is not a regular expression: {error} in '{text}'") from error
    if not groups:
        close = difflib.get_close_matches(text, READY, n=1)
        hint = "give the number a name, such as 'val_acc=(?P<val_acc>\\S+)'"
        hint = f"did you mean {close[0]!r}?" if close else hint
        raise ValueError(f"has no named group in '{text}'; {hint}")


def _check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        check_pattern(pattern)
    return patterns


class Metrics(Section):
    """Where the metric is read."""

    source: SourceName = Field(
        "auto",
        description="auto: what the script reports, what the hooks see, and known lines that rank "
        "0 prints; sidecar: the same without the lines; stdout, csv, jsonl: reports, "
        "hooks and that source; or the name of an installed plugin.",
    )
    pattern: Annotated[
        tuple[str, ...],
        Field(strict=False),
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
        WithJsonSchema(
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
        ),
        goes_with("source", "stdout"),
        AfterValidator(_check_patterns),
    ] = Field(
        (),
        description="With stdout: one or more regular expressions whose named groups are metrics, "
        "or torchvision, nanogpt, torchtitan, pytorch_examples.",
    )
    path: Annotated[
        Template | None, goes_with("source", *_FILES, example="path: logs/**/metrics.csv")
    ] = Field(
        None,
        min_length=1,
        description="The file to read: a glob, relative to workdir; ${...} placeholders.",
    )
    name: Annotated[str | None, goes_with("source", "stdout", *_FILES)] = Field(
        None,
        min_length=1,
        description="The column, key or group that contains objective.metric, if it has "
        "another name.",
    )
    epoch: Annotated[str | None, _IN_FILE] = Field(
        None, min_length=1, description="The column or key that counts epochs."
    )
    step: Annotated[str | None, _IN_FILE] = Field(
        None, min_length=1, description="The column or key with the step number."
    )


def find_metrics(patterns: tuple[str, ...]) -> list[str]:
    """Return the groups of patterns that are metrics, each once."""
    texts = [text for pattern in patterns for text in READY.get(pattern, (pattern,))]
    names = {name: None for text in texts for name in re.compile(text).groupindex}
    return [name for name in names if name not in COUNTERS]
