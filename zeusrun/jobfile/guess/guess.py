"""What a command and the text of its script say about batch size, learning rate and epochs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zeusrun.jobfile.accumulation import can_split
from zeusrun.jobfile.guess.options import (
    ACCUMULATION,
    DEVICES,
    EITHER,
    EPOCHS,
    GLOBAL,
    PER_DEVICE,
    RATES,
    Arguments,
    is_whole,
)
from zeusrun.target import likely_mode

if TYPE_CHECKING:
    from collections.abc import Collection

    from zeusrun.jobfile.guess.command import Launched
    from zeusrun.jobfile.guess.options import Found
    from zeusrun.jobfile.guess.script import Script

_FACTORS = (0.25, 0.5, 1, 2, 4)
_METRICS = {
    "transformers": "eval_loss",
    "torchvision": "acc1",
    "timm": "eval_top1",
    "lightning": "val_loss",
    "nanoGPT": "val_loss",
    "accelerate": "accuracy",
}


@dataclass(frozen=True)
class Batch:
    """The batch sizes of a job.

    Attributes:
        default: Global.
        per_device_max: Samples on a device, where the command accumulates gradients.
        why: Where the default is from, a clause for people.
    """

    default: int
    why: str
    per_device_max: int | None = None

    def candidates(self, ranks: int) -> list[int]:
        """Return powers of two times the default, as far as so many ranks can share them."""
        sizes = [self.default * factor for factor in _FACTORS]
        shares = [(int(size), int(size) // ranks) for size in sizes if size % ranks == 0]
        most = self.per_device_max
        fit = {size for size, share in shares if share and can_split(share, most)}
        return sorted(fit | {self.default})


@dataclass(frozen=True)
class Guess:
    """What a job file can be written from. ``None`` is what was not found.

    Attributes:
        launched: The script and how it is started.
        args: Of the script, with placeholders.
        ranks: How many processes the batch sizes are for.
        batch: The batch sizes.
        learning_rate: At the default batch size, how it grows, and where that is from.
        max_epochs: And where that is from.
        metric: Its probable name and mode, and where that is from.
        is_reported: Whether the script itself reports that metric to zeusrun.
        takes_batch_size: Whether the batch size reaches the script.
        warnings: What may go wrong, a sentence each.
        seen_rate: The learning rate of the optimizer in a run.
    """

    launched: Launched
    args: tuple[str, ...]
    ranks: int
    batch: Batch | None
    learning_rate: tuple[float, str, str] | None
    max_epochs: tuple[int, str] | None
    metric: tuple[str, str, str]
    is_reported: bool
    takes_batch_size: bool
    warnings: tuple[str, ...]
    seen_rate: float | None = None


def build_guess(launched: Launched, script: Script, *, gpus: int, cpus: int) -> Guess:
    """Guess a job; ``gpus`` and ``cpus`` are those of this machine."""
    warnings = [*launched.warnings]
    arguments = Arguments.of(launched.args, script)
    launched = _with_processes(launched, script, arguments, gpus)
    if script.spawns and launched.nproc_per_node == 1:
        warnings.append(
            "the script may start processes itself (spawn); zeusrun sees only those that torchrun "
            "starts, so give a torchrun command if the script allows that"
        )
    ranks = _count_ranks(launched.nproc_per_node, gpus, cpus)
    batch = _guess_batch(arguments, ranks, warnings)
    learning_rate = _guess_learning_rate(arguments, warnings)
    max_epochs = _guess_epochs(arguments)
    words = arguments.all_words
    return Guess(
        launched=launched,
        args=words,
        ranks=ranks,
        batch=batch,
        learning_rate=learning_rate,
        max_epochs=max_epochs,
        metric=_guess_metric(script),
        is_reported=bool(script.metrics),
        takes_batch_size=any("batch_size}" in word for word in words)
        or not script.asks.keys().isdisjoint(("local_batch_size", "global_batch_size")),
        warnings=tuple(warnings),
    )


def _with_processes(
    launched: Launched, script: Script, arguments: Arguments, gpus: int
) -> Launched:
    """Decide on the processes where the launcher's options do not."""
    if launched.nproc_per_node is None:  # accelerate then takes every GPU
        return replace(launched, nproc_per_node="gpu" if gpus else 1)
    devices = arguments.find_given(DEVICES, is_whole)
    if launched.nproc_per_node == 1 and script.library == "lightning" and devices is not None:
        return replace(launched, nproc_per_node=int(devices.value))
    return launched


def _count_ranks(nproc_per_node: int | str | None, gpus: int, cpus: int) -> int:
    if isinstance(nproc_per_node, int):
        return nproc_per_node
    return cpus if nproc_per_node == "cpu" else gpus or (cpus if nproc_per_node == "auto" else 1)


def _guess_batch(arguments: Arguments, ranks: int, warnings: list[str]) -> Batch | None:
    device, every = (arguments.find_given(names, is_whole) for names in (PER_DEVICE, GLOBAL))
    if device and every:
        arguments.put(device, "micro_batch_size")
        arguments.put(every, "batch_size")
        micro = int(device.value)
        size, rounded = _round_up(int(every.value), micro * ranks)
        why = f"{every.origin}{rounded}, in micro-batches by {device.origin}"
        return Batch(size, why, micro)
    found = device or every or arguments.find_given(EITHER, is_whole)
    found = found or arguments.find((*PER_DEVICE, *GLOBAL, *EITHER), is_whole)
    if found is None:
        return _asked_batch(arguments.script, ranks)
    is_local, why = _convention(found, arguments.script, ranks)
    value, steps = int(found.value), arguments.find(ACCUMULATION, is_whole)
    if steps is not None and steps.value == 1 and not arguments.script.divides_steps:
        steps = None
    if steps is not None and (is_local or ranks == 1):
        return _accumulated(arguments, found, steps, ranks)
    if steps is not None:
        warnings.append(
            f"the script accumulates {steps.value:g} batches ({steps.origin}), which the batch "
            f"sizes here do not include; set {steps.written} to 1"
        )
    if not is_local:
        arguments.put(found, "batch_size")
        size, rounded = _round_up(value, ranks)
        return Batch(size, f"{found.origin}{rounded}: {why}")
    arguments.put(found, "local_batch_size")
    times = f" x {ranks} processes" if ranks > 1 else ""
    return Batch(value * ranks, f"{found.origin}{times}: {why}")


def _round_up(size: int, unit: int) -> tuple[int, str]:
    """Return the next multiple of ``unit``, and a clause if that is another number."""
    rounded = -(-size // unit) * unit
    return rounded, "" if rounded == size else f", rounded up to a multiple of {unit}"


def _asked_batch(script: Script, ranks: int) -> Batch | None:
    """Return the batch size that the script trains with unless zeusrun gives it another one."""
    for name, times in (("local_batch_size", ranks), ("global_batch_size", 1)):
        default = script.asks.get(name)
        if default is not None and default >= 1:
            each = f" x {times} processes" if times > 1 else ""
            return Batch(int(default) * times, f"run.{name}(default={default:g}){each}")
    return None


def _accumulated(arguments: Arguments, found: Found, steps: Found, ranks: int) -> Batch:
    """Keep the size of the micro-batches, and let the accumulation steps follow the batch size."""
    divided = arguments.script.divides_steps
    arguments.put(found, "micro_batch_size")
    arguments.put(steps, "total_accumulation_steps" if divided else "accumulation_steps")
    micro, count = int(found.value), int(steps.value)
    own = max(1, count // ranks) if divided else count
    times = f" x {ranks} processes" if ranks > 1 else ""
    over = ": the script divides them by the processes" if divided else ""
    why = f"{found.origin} x {own} accumulated{times} ({steps.origin}{over})"
    return Batch(micro * own * ranks, why, micro)


def _convention(found: Found, script: Script, ranks: int) -> tuple[bool, str]:
    """Return whether a batch size is that of one process, and why."""
    rules = (
        (found.name in PER_DEVICE, True, "its name says that it is for each process"),
        (found.name in GLOBAL, False, "its name says that it is for all processes"),
        (script.divides, False, "the script divides it by the number of processes"),
        (script.library, True, f"scripts of {script.library} usually mean each process"),
        (script.samples, True, "the script divides the data by the processes, not the batch size"),
        (ranks == 1, False, "there is one process"),
        (True, True, "assumed to be for each process, because nothing says otherwise"),
    )
    return next((is_local, why) for holds, is_local, why in rules if holds)


def _guess_learning_rate(
    arguments: Arguments, warnings: list[str]
) -> tuple[float, str, str] | None:
    script, found = arguments.script, arguments.find(RATES)
    asked, by = script.asks.get("learning_rate"), script.scales_by
    if found is None and asked:
        return asked, "linear", f"run.learning_rate(default={asked:g})"
    if by == "lr_base":
        if found is None or found.place is None:
            warnings.append(
                "the script scales its learning rate with the batch size itself, unless it gets "
                "--lr; zeusrun leaves the learning rate alone"
            )
            return None
    elif by is not None:
        warnings.append(
            f"the script seems to multiply its learning rate by the {by} itself; check that "
            "learning_rate.scale does not do it once more"
        )
    if found is None:
        return None
    arguments.put(found, "learning_rate")
    if by == "batch size":
        return found.value, "none", f"{found.origin}; scale: none, since the script scales it"
    if script.uses_adam:
        return found.value, "sqrt", f"{found.origin}; scale: sqrt, as usual with Adam"
    return found.value, "linear", found.origin


def _guess_epochs(arguments: Arguments) -> tuple[int, str] | None:
    found, asked = arguments.find(EPOCHS, is_whole), arguments.script.asks.get("epochs")
    if found is not None:
        arguments.put(found, "max_epochs")
        return int(found.value), found.origin
    return (int(asked), f"run.epochs(default={asked:g})") if asked and asked >= 1 else None


def _guess_metric(script: Script) -> tuple[str, str, str]:
    if script.metrics:
        name = script.metrics[0]
        return name, likely_mode(name), "the script reports it"
    if script.library == "transformers" and script.computes_metrics:
        return "eval_accuracy", "max", "if compute_metrics returns accuracy"
    name = _METRICS.get(script.library or "", "val_accuracy")
    return name, likely_mode(name), f"usual with {script.library}" if script.library else "usual"


def add_observed(guess: Guess, size: int | None, rates: Collection[float]) -> Guess:
    """Return a guess with what a run was seen to train with, where the guess says nothing.

    Args:
        guess: The guess.
        size: The batch size; ``None`` if it was not observed.
        rates: The learning rates of the optimizer's parameter groups.
    """
    rate = max(rates, default=None)
    guess = replace(guess, seen_rate=rate)
    if not size or size % guess.ranks or guess.batch is not None or guess.takes_batch_size:
        return guess
    return replace(guess, batch=Batch(size, "what the short run trained with"))
