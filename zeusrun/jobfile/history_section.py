"""The section ``history`` of a job file: where its runs are recorded."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from zeusrun.jobfile.sections import Section
from zeusrun.jobfile.validators import check_history


class HistorySection(Section, title="History"):
    """Where the runs of the job are recorded."""

    url: Annotated[str, AfterValidator(check_history)] | None = Field(
        None,
        description="A server (https://...) or a database (postgresql://...) that several machines "
        "share; null: what ZEUSRUN_HISTORY names, else the files of this machine.",
    )
    wait_s: float = Field(
        300, ge=0, description="How long a submit waits for a server that does not respond."
    )
    offline: Literal["fail", "cheapest"] = Field(
        "fail",
        description="What a submit does after that. fail: exit 6; cheapest: run the cheapest known "
        "batch size, and deliver the result later.",
    )


def read_short_form(value: object) -> object:
    """Return ``history: URL`` as a section."""
    return {"url": value} if isinstance(value, str) else value
