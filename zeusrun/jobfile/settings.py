"""Reads the job file of another machine, as a server has it, for what its policy needs."""

from __future__ import annotations

from pathlib import Path

from zeusrun.jobfile.section import validate
from zeusrun.jobfile.spec import JobSpec
from zeusrun.jobfile.yaml_reader import parse_document

_OF_POLICY = frozenset(
    {
        *("name", "learning_rate", "launch", "objective", "batch_size", "policy"),
        *("early_stop", "attempts", "power_limit", "adapt", "run_on"),
    }
)
_REST = {"module": "elsewhere", "source": Path("/job.yaml")}  # what stands for the rest


def read_settings(text: str, label: str) -> JobSpec:
    """Return the job without what names files or programs of that machine.

    Args:
        text: Its job file.
        label: Begins each error.

    Raises:
        JobFileError: If the text cannot be used.
    """
    document = parse_document(text, label)
    values = {key: value for key, value in document.data.items() if key in _OF_POLICY}
    return validate(JobSpec, document, {**values, **_REST}, {"source", "secrets"})
