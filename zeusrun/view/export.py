"""Output for programs: JSON and CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from zeusrun.analysis.estimates import SAVED, name_ends
from zeusrun.analysis.savings import find_savings
from zeusrun.history.rules import is_offline
from zeusrun.plain_text import plain_json, plain_text
from zeusrun.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from zeusrun.analysis.estimates import Savings
    from zeusrun.launcher.attempts.recurrence import SubmitResult
    from zeusrun.metrics.progress import TrainingSummary


def result_json(job: str, result: SubmitResult, savings: Savings) -> dict[str, Any]:
    """Return the object that ``submit --json`` prints as its last line."""
    return {
        "job": job,
        "recurrence": None if any(map(is_offline, result.trials)) else result.recurrence,
        "reached": result.reached,
        "exit_code": int(result.exit_code),
        "trials": trial_records(result.trials, savings),
        "savings": {
            "batch_size": savings.in_use,
            **name_ends("share", savings.share),
            **name_ends("net_j", savings.net),
            "default_j": savings.default_j,
            "recurrences": len(savings.by_trial),
            "pays_back_in": savings.pays_back_in,
            "note": savings.note,
        },
    }


def trial_records(trials: Iterable[Trial], savings: Savings) -> list[dict[str, Any]]:
    """Return trials as ``history --json`` prints them.

    ``saved_j`` is what a recurrence is expected to have saved, from ``saved_low_j`` to
    ``saved_high_j`` in nine of ten cases. It is set on its last trial, and ``None`` on the others
    and where there is nothing to compare with. ``recurrence`` is ``None`` until the server of an
    offline trial has numbered it.
    """
    unknown = {"recurrence": None}
    return [
        {
            **trial.to_json(),
            **(unknown if is_offline(trial) else {}),
            **name_ends("saved_j", savings.by_trial.get(trial.trial)),
        }
        for trial in trials
    ]


def all_records(by_job: Iterable[Sequence[Trial]], last: int | None = None) -> list[dict[str, Any]]:
    """Return the ``last`` trials of each job as records, the oldest first; ``None``: all."""
    records = [
        record
        for trials in by_job
        for record in trial_records(trials[-last:] if last else trials, find_savings(trials))
    ]
    return sorted(records, key=lambda record: str(record["started_at"]))


def print_json(value: object) -> None:
    """Print a value as one line."""
    print_text(json_line(value))


def json_line(value: object) -> str:
    """Return a value as one line of JSON."""
    return plain_json(json.dumps(value, ensure_ascii=False, allow_nan=False)) + "\n"


def print_text(text: str) -> None:
    """Print a whole text, in UTF-8: programs must not get a "?" from a terminal without a letter.

    A lone surrogate, from a name that is not UTF-8, becomes a "?". A closed pipe does not change
    the exit code of the command.
    """
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads it any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def csv_text(records: Iterable[Mapping[str, Any]]) -> str:
    """Return records of trials as CSV with a header; a list or a mapping is a cell with JSON."""
    names = [*(field.name for field in dataclasses.fields(Trial)), *SAVED]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _csv_cell(each.get(name)) for name in names} for each in records)
    return text.getvalue()


def _csv_cell(value: object) -> object:
    """Return a CSV cell. Text that a spreadsheet would run as a formula gets a '."""
    if isinstance(value, (list, dict)):
        return json_line(value).rstrip()
    if not isinstance(value, str):
        return value
    text = plain_text(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def sight_json(trial: Trial, sight: TrainingSummary) -> dict[str, Any]:
    """Return what was seen of a training as plain JSON; NaN and infinities are strings."""
    rows = [
        {
            "name": name,
            "source": source,
            **seen._asdict(),
            **{end: _finite(getattr(seen, end)) for end in ("first", "last", "low", "high")},
        }
        for name, source, seen in sight.metrics
    ]
    keys = ("name", "version", "problem")
    libraries = [dict(zip(keys, row, strict=True)) for row in sight.libraries]
    return {
        "trial": trial.trial,
        "metric": trial.metric,
        **dataclasses.asdict(sight),
        "metrics": rows,
        "libraries": libraries,
    }


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
