"""Guesses a job from a command and its script."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zeusrun.jobfile.guess.options import Arguments
from zeusrun.jobfile.sections import can_split

if TYPE_CHECKING:
    from zeusrun.jobfile.guess.command import Launched
    from zeusrun.jobfile.guess.options import OptionValue
    from zeusrun.jobfile.guess.script import Script

_PER_DEVICE = (
    "per_device_train_batch_size", "per_gpu_train_batch_size", "micro_batch_size",
    "local_batch_size", "batch_size_per_gpu", "batch_size_per_device", "device_batch_size",
)  # fmt: skip
_GLOBAL = ("global_batch_size", "total_batch_size", "train_global_batch_size")
_EITHER = (
    "batch_size", "train_batch_size", "train_batch", "train_bs", "batch_size_train", "batchsize",
    "mini_batch_size", "minibatch_size", "bsz", "tbs", "bs", "batch", "b",
)  # fmt: skip
_ACCUMULATION = (
    "gradient_accumulation_steps", "grad_accum_steps", "accum_iter", "accumulation_steps",
    "accumulate_grad_batches", "grad_accum", "update_freq",
)  # fmt: skip
_RATES = ("learning_rate", "lr", "base_lr", "blr")
_EPOCHS = (
    "num_train_epochs", "max_epochs", "num_epochs", "n_epochs", "nepochs", "epochs", "max_epoch",
)  # fmt: skip
_METRICS = {
    "transformers": "eval_loss", "torchvision": "acc1", "timm": "eval_top1",
    "lightning": "val_loss", "nanoGPT": "val_loss",
}  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """The batch sizes of a job."""

    default: int  # global
    why: str  # where it is from, for the comment
    per_device_max: int | None = None  # if the command accumulates gradients
    by_hook: bool = False  # the script has no option for it

    def candidates(self, ranks: int) -> list[int]:
        """Return powers of two times the default that the ranks can share equally."""
        shares = {self.default * factor / 4 / ranks for factor in (1, 2, 4, 8, 16)}
        fit = [int(each) for each in shares if each >= 1 and each == int(each)]
        sizes = {each * ranks for each in fit if can_split(each, self.per_device_max)}
        return sorted(sizes | {self.default})


@dataclass(frozen=True)
class Guess:
    """The content of a job file; ``None`` for what was not found."""

    launched: Launched  # its arguments with placeholders
    ranks: int  # processes on each machine
    batch: Batch | None
    learning_rate: OptionValue | None
    scale: str  # how it grows with the batch size
    max_epochs: OptionValue | None
    metric: str  # its probable name
    monitor: tuple[str, str | None]  # what the script itself goes by, and its mode
    warnings: tuple[str, ...]  # a sentence each
    seen_epochs: int | None = None  # that a run has printed
    pattern: str | None = None  # of the lines in which a run printed its metric
    late_save: int | None = None  # the line of the script that saves after the training loop


def build_guess(launched: Launched, script: Script, *, gpus: int, cpus: int) -> Guess:
    """Guess a job; ``gpus`` and ``cpus`` are those of this machine."""
    arguments, warnings = Arguments(launched.args, script.options), list(launched.warnings)
    nproc: int | str | None = launched.nproc_per_node
    devices = arguments.find(("devices", "gpus"), default=False)
    if nproc == 1 and script.library == "lightning":  # it would start them
        nproc = script.devices if devices is None else int(devices.value)
    if nproc is None:  # accelerate takes every GPU
        nproc = "gpu" if gpus else 1
    ranks = nproc if isinstance(nproc, int) else {"cpu": cpus, "gpu": gpus}.get(nproc, gpus or cpus)
    batch = _guess_batch(arguments, script, max(1, ranks) * launched.nnodes)
    rate, scale = _guess_learning_rate(arguments, script, warnings)
    given = " ".join(launched.args)
    if script.library == "transformers" and "--do_eval" in given and "_strategy" not in given:
        warnings.append(
            "the script evaluates only after its last epoch, so no run can end early; add "
            "--eval_strategy epoch to the command"
        )
    epochs = arguments.find(_EPOCHS)
    if epochs is not None:
        arguments.put(epochs, "max_epochs")
    launched = replace(launched, nproc_per_node=nproc, args=tuple(arguments.words))
    return Guess(
        launched=launched,
        ranks=max(1, ranks),
        batch=batch,
        learning_rate=rate,
        scale=scale,
        max_epochs=epochs,
        metric=script.monitor[0] or _METRICS.get(script.library or "", "val_accuracy"),
        monitor=script.monitor,
        warnings=tuple(warnings),
        late_save=script.late_save,
    )


def _guess_batch(arguments: Arguments, script: Script, ranks: int) -> Batch | None:
    names = (*_PER_DEVICE, *_GLOBAL, *_EITHER)
    found = arguments.find(_GLOBAL, default=False) or arguments.find(names)
    if found is None:
        return None
    value, each = int(found.value), f" x {ranks} processes" if ranks > 1 else ""
    if found.name in _GLOBAL or (script.divides and found.name not in _PER_DEVICE):
        arguments.put(found, "batch_size")
        size = -(-value // ranks) * ranks
        rounded = "" if size == value else f", rounded up to a multiple of {ranks}"
        why = "its name says that it is for all processes"
        if found.name not in _GLOBAL:
            why = "the script divides it by the number of processes"
        return Batch(size, f"{found.origin}{rounded}: {why}")
    steps, divided = arguments.find(_ACCUMULATION), script.library == "nanoGPT"
    if steps is not None and (steps.value > 1 or divided):
        # The micro-batches keep their size; the steps follow the batch size.
        arguments.put(found, "micro_batch_size")
        arguments.put(steps, "total_accumulation_steps" if divided else "accumulation_steps")
        accumulated = max(1, int(steps.value) // ranks) if divided else int(steps.value)
        over = " divided by the processes" if divided and ranks > 1 else ""
        why = f"{found.origin} x {accumulated} accumulated{each}; {steps.origin}{over}"
        return Batch(value * accumulated * ranks, why, value)
    arguments.put(found, "local_batch_size")
    why = ": assumed to be for each process, because nothing says otherwise" if each else ""
    if found.name in _PER_DEVICE:
        why = ": its name says that it is for each process"
    elif script.library:
        why = f": scripts of {script.library} usually mean each process"
    return Batch(value * ranks, f"{found.origin}{each}{why}")


def _guess_learning_rate(
    arguments: Arguments, script: Script, warnings: list[str]
) -> tuple[OptionValue | None, str]:
    found, by = arguments.find(_RATES, whole=False), script.scales_by
    if by == "lr_base":
        if found is None or found.place is None:
            warnings.append(
                "the script scales its learning rate with the batch size itself, unless it gets "
                "--lr; zeusrun leaves the learning rate alone"
            )
            return None, "none"
    elif by is not None:
        warnings.append(
            f"the script seems to multiply its learning rate by the {by} itself; check that "
            "learning_rate.scale does not do it once more"
        )
    if found is not None:
        arguments.put(found, "learning_rate")
    if by == "batch size":
        return found, "none"
    given = re.findall("(?:^|=)(adam|sgd)", "\n".join(arguments.words).lower(), re.MULTILINE)
    adam = given[-1] == "adam" if given else script.uses_adam
    return found, "sqrt" if adam else "linear"


def correct_batch(guess: Guess, size: int) -> Guess | None:
    """Return the guess with the global batch size of a run; ``None`` if it cannot be corrected.

    It corrects an option that was taken for each process but means all of them, or the reverse.
    """
    batch, ranks, args = guess.batch, guess.ranks, guess.launched.args
    if batch is None or batch.per_device_max is not None or batch.by_hook:
        return None
    swaps = {
        batch.default * ranks: ("${batch_size}", "${local_batch_size}", "each process"),
        batch.default / ranks: ("${local_batch_size}", "${batch_size}", "all processes"),
    }
    wrong, right, what = swaps.get(size, ("", "", ""))
    if not wrong or not any(wrong in word for word in args):
        return None
    return replace(
        guess,
        batch=Batch(size, f"the run of --try: the option is for {what}"),
        launched=replace(guess.launched, args=tuple(word.replace(wrong, right) for word in args)),
    )
