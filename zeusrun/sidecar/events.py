"""The events that ranks append to ``metrics.jsonl``, the sidecar.

One JSON object a line, ``{"v": 1, "event": ..., "t": ..., ...}``. Each is one ``write`` with
``O_APPEND``, so lines of several ranks do not mix on a local file system. ``t`` is
``time.monotonic()``, which all processes of a host share.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from zeusrun.clock import is_moment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SIDECAR_NAME = "metrics.jsonl"
ADAPT_STATE = "adapt.json"
"""The file of the run directory with the state of a batch size that adapts."""

_VERSION = 1
_PLAIN = json.JSONDecoder()


@dataclass(frozen=True)
class Started:
    """A rank is about to run the script; ``restart`` counts torchrun's restarts."""

    t: float
    rank: int
    pid: int
    restart: int = 0


@dataclass(frozen=True)
class Asked:
    """The script asked for the first time: for ``batch_size``, ``learning_rate``, or ``stop``."""

    t: float
    choice: str


REPORT = "report"
"""The source of what a script reports itself, by ``run.report``."""


@dataclass(frozen=True)
class Reported:
    """Rank 0 reported metrics after an epoch; values may be NaN or infinite.

    Attributes:
        t: When; of an evaluation, its last value.
        epoch: Epochs completed.
        source: ``report``, or the library whose hook saw them.
        parts: How many values of one evaluation were logged; each metric is their mean.
        each_step: Whether they are logged in every step, so that they are no results.
        samples: What the optimizer steps of all ranks consumed before; ``None`` if unknown.
        counted: Whether the epoch is only the number of the report, because none is known.
        steps: Optimizer steps before it; ``None`` where they are not seen.
    """

    t: float
    epoch: int
    metrics: Mapping[str, float]
    source: str = REPORT
    parts: int = 1
    each_step: bool = False
    samples: int | None = None
    counted: bool = False
    steps: int | None = None


@dataclass(frozen=True)
class Hooked:
    """The script has imported a library that zeusrun has a hook for.

    ``problem``: why the hook does not fit, so that the library is not observed; else ``None``.
    """

    t: float
    library: str
    version: str
    problem: str | None = None


@dataclass(frozen=True)
class Loading:
    """Rank 0 asks a data loader for the first batch of the script; it is written once."""

    t: float


class Built(Loading):
    """Rank 0 has built an optimizer of torch, whose steps are seen; it is written once."""


@dataclass(frozen=True)
class Observed:
    """What a rank saw of its training: the loader that feeds its optimizer steps.

    Attributes:
        rank: Which.
        samples: Of this rank in one optimizer step; ``None`` if they cannot be counted.
        batches: Of the loader in one optimizer step: gradient accumulation.
        replicas: Among how many ranks its sampler divides the data; ``None`` if it does not say.
        learning_rates: Of the optimizer's parameter groups, without what a scheduler does to them.
        alone: Whether it is one of several ranks, and trains a model of its own.
        data: Samples of the training data; ``None`` if unknown, as of a stream.
        length: Batches in a pass over the loader; ``None`` if unknown.
        step: Optimizer steps of this rank so far.
    """

    t: float
    rank: int
    samples: int | None
    batches: int
    replicas: int | None = None
    learning_rates: tuple[float, ...] = ()
    alone: bool = False
    data: int | None = None
    length: int | None = None
    step: int = 0

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in a pass over the loader; ``None`` if unknown."""
        return None if self.length is None else math.ceil(self.length / max(1, self.batches))


@dataclass(frozen=True)
class Applied:
    """A hook replaced what the script gave to a data loader or an optimizer by zeusrun's choice.

    ``choice``: ``batch_size`` (of one rank) or ``learning_rate``; ``where``: file and line.
    """

    t: float
    choice: str
    given: float
    chosen: float
    where: str


@dataclass(frozen=True)
class Watched:
    """Rank 0 measured the gradients of a model; what is not known yet is absent.

    Another rank only reports a problem of its own.

    Attributes:
        model: Which of the script's models, from 0.
        parameters: How many numbers it has.
        values: By name: ``noise_scale``, in samples, and the ends of its range, with the suffixes
            ``_low`` and ``_high``; ``gradient_variance``; all are moving averages.
        how: The noise scale was measured: ``ranks``, ``examples``, ``micro_batches``, or ``adam``,
            of ranks whose gradients are scaled as Adam does.
        problem: Why it, or a part of what was asked for, cannot be measured; else ``None``.
        samples: That the optimizer had consumed in the middle of what is averaged; ``None`` if
            unknown.
    """

    t: float
    model: int
    parameters: int
    values: Mapping[str, float]
    how: str = "ranks"
    problem: str | None = None
    rank: int = 0
    samples: int | None = None


@dataclass(frozen=True)
class Adapted:
    """The batch size of a training that adapts it: the first one, and each change.

    Attributes:
        step: Optimizer steps before it.
        epoch: The present one, from 1.
        learning_rate: Of the first parameter group, from now on; ``None`` before the first step.
        why: A sentence for people.
        problem: Why the policy could not decide, so that the batch size stays; else ``None``.
    """

    t: float
    step: int
    epoch: int
    batch_size: int
    learning_rate: float | None
    why: str
    problem: str | None = None


@dataclass(frozen=True)
class Spawned:
    """A process that the script has started, or a rank beside such ones, made its first step.

    ``world_size``: of its process group, 1 without one; ``None`` if unknown. ``followed``: whether
    hooks see its steps and its part of each batch. ``launched``: whether torchrun has started it.
    """

    t: float
    pid: int
    world_size: int | None = None
    followed: bool = False
    launched: bool = False


@dataclass(frozen=True)
class Ended:
    """The script of a rank ended with ``code``.

    ``grouped``: whether the rank was seen in a process group of ``torch.distributed``.
    """

    t: float
    rank: int
    code: int
    grouped: bool = True


_OfProcess: TypeAlias = Started | Loading | Built | Observed | Spawned | Ended
Event: TypeAlias = _OfProcess | Asked | Reported | Hooked | Applied | Watched | Adapted


def encode_event(event: Event) -> bytes:
    """Return the event as one line of strict JSON, newline included."""
    record: dict[str, Any] = {"v": _VERSION, "event": type(event).__name__.lower(), **vars(event)}
    if isinstance(event, Reported):
        # Strict JSON has no NaN: it is written as a string, which float() reads.
        record["metrics"] = {
            name: value if math.isfinite(value) else str(value)
            for name, value in event.metrics.items()
        }
        for name in ("parts", "each_step", "samples", "counted", "steps"):
            if record[name] == getattr(Reported, name):
                del record[name]
    # A name may have a lone surrogate, which UTF-8 cannot hold.
    return json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n"


def decode_event(line: bytes) -> Event | None:
    """Return the event of a line; ``None`` if this version does not know its kind.

    Raises:
        ValueError: If the line is not an event; the message says why.
    """
    try:
        record = _parse(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON") from error
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one error type for bad lines
    kind = record.get("event")
    if not isinstance(kind, str):
        raise ValueError("no 'event' in it")  # noqa: TRY004
    decode = _DECODERS.get(kind)
    return None if decode is None else decode(_moment(record), record)


def _parse(line: bytes) -> object:
    """Return what ``json.loads`` returns, in half the time where the line is only its value."""
    with contextlib.suppress(ValueError):
        text = line.decode()
        record, end = _PLAIN.raw_decode(text)
        if end == len(text):
            return record
    return json.loads(line)


def _started(t: float, record: dict[str, Any]) -> Started:
    restart = _count({"restart": 0, **record}, "restart")
    return Started(t, _count(record, "rank"), _count(record, "pid"), restart)


def _asked(t: float, record: dict[str, Any]) -> Asked | None:
    choice = record.get("choice")
    return Asked(t, choice) if choice in ("batch_size", "learning_rate", "stop") else None


def _reported(t: float, record: dict[str, Any]) -> Reported:
    metrics = record.get("metrics")
    if not isinstance(metrics, dict):
        raise ValueError("'metrics' is not an object")  # noqa: TRY004 - one error type
    values = {name: _number(name, value) for name, value in metrics.items()}
    return Reported(
        t,
        _count(record, "epoch"),
        values,
        str(record.get("source", REPORT))[:100],
        _count({"parts": 1, **record}, "parts"),
        record.get("each_step") is True,
        _perhaps(record, "samples"),
        record.get("counted") is True,
        _perhaps(record, "steps"),
    )


def _hooked(t: float, record: dict[str, Any]) -> Hooked:
    problem = record.get("problem")
    library, version = str(record.get("library"))[:100], str(record.get("version"))[:100]
    return Hooked(t, library, version, None if problem is None else str(problem)[:1000])


def _observed(t: float, record: dict[str, Any]) -> Observed:
    rates = record.get("learning_rates", [])
    if not isinstance(rates, list):
        raise ValueError("'learning_rates' is not a list")  # noqa: TRY004
    return Observed(
        t,
        _count(record, "rank"),
        batches=_count(record, "batches"),
        learning_rates=tuple(_number("learning_rates", rate) for rate in rates),
        alone=record.get("alone") is True,
        step=_count(record, "step"),
        **{key: _perhaps(record, key) for key in ("samples", "replicas", "data", "length")},
    )


def _applied(t: float, record: dict[str, Any]) -> Applied:
    given, chosen = (_number(key, record.get(key)) for key in ("given", "chosen"))
    return Applied(t, str(record.get("choice")), given, chosen, str(record.get("where"))[:1000])


def _watched(t: float, record: dict[str, Any]) -> Watched:
    values = record.get("values")
    if not isinstance(values, dict):
        raise ValueError("'values' is not an object")  # noqa: TRY004 - one error type
    problem = record.get("problem")
    return Watched(
        t,
        _count(record, "model"),
        _count(record, "parameters"),
        {str(name): _number(name, value) for name, value in values.items()},
        str(record.get("how"))[:100],
        None if problem is None else str(problem)[:1000],
        _count(record, "rank"),
        None if record.get("samples") is None else _count(record, "samples"),
    )


def _adapted(t: float, record: dict[str, Any]) -> Adapted:
    rate, problem = record.get("learning_rate"), record.get("problem")
    return Adapted(
        t,
        _count(record, "step"),
        _count(record, "epoch"),
        _count(record, "batch_size"),
        None if rate is None else _number("learning_rate", rate),
        str(record.get("why"))[:1000],
        None if problem is None else str(problem)[:1000],
    )


def _spawned(t: float, record: dict[str, Any]) -> Spawned:
    followed, launched = (record.get(key) is True for key in ("followed", "launched"))
    return Spawned(t, _count(record, "pid"), _perhaps(record, "world_size"), followed, launched)


def _ended(t: float, record: dict[str, Any]) -> Ended:
    grouped = record.get("grouped") is not False
    return Ended(t, _count(record, "rank"), _count(record, "code"), grouped)


_DECODERS: dict[str, Callable[[float, dict[str, Any]], Event | None]] = {
    "started": _started,
    "asked": _asked,
    "reported": _reported,
    "hooked": _hooked,
    "loading": lambda t, _: Loading(t),
    "built": lambda t, _: Built(t),
    "observed": _observed,
    "applied": _applied,
    "watched": _watched,
    "adapted": _adapted,
    "spawned": _spawned,
    "ended": _ended,
}


def _moment(record: dict[str, Any]) -> float:
    t = record.get("t")
    if isinstance(t, (int, float)) and not isinstance(t, bool) and is_moment(t):
        return float(t)
    raise ValueError("'t' is not a finite number")


def _count(record: dict[str, Any], key: str) -> int:
    value = record.get(key)
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError(f"{key!r} is not a whole number from 0")
    return value


def _perhaps(record: dict[str, Any], key: str) -> int | None:
    return None if record.get(key) is None else _count(record, key)


def _number(name: str, value: object) -> float:
    if type(value) is float:
        return value
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(value, (int, float, str)):
            return float(value)
    raise ValueError(f"metric {name!r} is not a number")
