"""Finds the options for batch size, learning rate and epochs in the arguments of a script."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeusrun.jobfile.guess.script import normal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from zeusrun.jobfile.guess.script import Script

PER_DEVICE = (
    "per_device_train_batch_size", "per_gpu_train_batch_size", "micro_batch_size",
    "train_micro_batch_size_per_gpu", "local_batch_size", "batch_size_per_gpu",
    "batch_size_per_device", "device_batch_size", "micro_train_batch_size",
)  # fmt: skip
GLOBAL = ("global_batch_size", "total_batch_size", "train_global_batch_size")
EITHER = ("batch_size", "train_batch_size", "batchsize", "bsz", "bs", "batch", "b")
ACCUMULATION = (
    "gradient_accumulation_steps", "grad_accumulation_steps", "grad_accum_steps", "accum_iter",
    "accumulation_steps", "accumulate_grad_batches", "accum_steps", "grad_accum", "update_freq",
)  # fmt: skip
RATES = ("learning_rate", "lr", "base_lr", "blr")
EPOCHS = (
    "num_train_epochs", "max_epochs", "num_epochs", "n_epochs", "epochs", "nb_epochs",
    "total_epochs", "max_epoch", "epoch",
)  # fmt: skip
DEVICES = ("devices", "gpus", "nproc_per_node")

_OPTION = re.compile(r"(?P<name>(?:--?|\+{1,2})?[A-Za-z_][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
# Of transformers' TrainingArguments, which HfArgumentParser makes options of.
_OF_TRAINER = {"per_device_train_batch_size": 8.0, "learning_rate": 5e-5, "num_train_epochs": 3.0}


@dataclass(frozen=True)
class Found:
    """An option and its value.

    Attributes:
        name: As it is normal.
        written: As the command or the script writes it.
        value: Above 0.
        place: Index of the word that contains the value; ``None`` if it is the script's default.
    """

    name: str
    written: str
    value: float
    place: int | None

    @property
    def origin(self) -> str:
        """Where the value is from, for people."""
        value = f"{self.value:g}"
        return f"{self.written} {value}" + (", the script's default" if self.place is None else "")


def is_whole(value: float) -> bool:
    """Whether a value can be a number of samples or epochs."""
    return value == int(value)


@dataclass
class Arguments:
    """The arguments of a script, in which placeholders take the places of numbers."""

    words: list[str]
    script: Script
    _added: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, words: Sequence[str], script: Script) -> Arguments:
        """Return the arguments with every ``$`` doubled, since no other placeholder is meant."""
        return cls([word.replace("$", "$$") for word in words], script)

    def find(
        self, names: Collection[str], fits: Callable[[float], bool] = lambda _: True
    ) -> Found | None:
        """Return the last option of these names with a fitting value, else a default."""
        return self.find_given(names, fits) or self._find_default(names, fits)

    def find_given(
        self, names: Collection[str], fits: Callable[[float], bool] = lambda _: True
    ) -> Found | None:
        """Return the last option of these names in the command."""
        found = None
        for place, word in enumerate(self.words):
            match = _OPTION.fullmatch(word)
            if match is None or normal(match["name"]) not in names:
                continue
            text, where = match["value"], place
            if text is None and word.startswith("-") and place + 1 < len(self.words):
                text, where = self.words[place + 1], place + 1
            value = _positive(text)
            if value is not None and fits(value):
                found = Found(normal(match["name"]), match["name"], value, where)
        return found

    def _find_default(self, names: Collection[str], fits: Callable[[float], bool]) -> Found | None:
        if self.takes_a_file:
            return None  # the file may give it
        for name in names:
            written, value = self.script.options.get(name, ("", 0.0))
            if value > 0 and fits(value):
                return Found(name, written, value, None)
            if name in _OF_TRAINER and self.script.reads_training_arguments:
                return Found(name, f"--{name}", _OF_TRAINER[name], None)
        return None

    @property
    def takes_a_file(self) -> bool:
        """Whether the only argument is a file, from which the script reads all others."""
        return len(self.words) == 1 and self.words[0].endswith((".json", ".yaml", ".yml", ".toml"))

    def put(self, found: Found, placeholder: str) -> None:
        """Replace a value by a placeholder, or add the option."""
        text = f"${{{placeholder}}}"
        if found.place is None:
            joined = self.script.library == "nanoGPT"  # its configurator takes no other form
            self._added += [f"{found.written}={text}"] if joined else [found.written, text]
            return
        head, equals, _ = self.words[found.place].partition("=")
        own = equals and normal(head) == found.name
        self.words[found.place] = f"{head}={text}" if own else text

    @property
    def all_words(self) -> tuple[str, ...]:
        """The arguments, those added included."""
        return (*self.words, *self._added)


def _positive(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < math.inf else None
