"""What a request may read and write."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, cast

from zeusrun.server.refusals import Refusal

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection


@dataclass(frozen=True)
class Access:
    """What the token of a request permits; without tokens, everything.

    Attributes:
        jobs: A pattern for the names of jobs, such as ``team-*``.
        can_write: Whether it may change their histories, too.
        token: The id of the token; ``None`` without one.
    """

    jobs: str = "*"
    can_write: bool = True
    token: str | None = None

    def covers(self, job: str) -> bool:
        """Whether the request may read about a job."""
        return fnmatchcase(job, self.jobs)

    def check_read(self, job: str) -> None:
        """Raise ``Refusal`` if the request may not read about a job."""
        if not self.covers(job):
            raise Refusal(
                403, "forbidden", f"this token is for jobs called {self.jobs}, not for {job}"
            )

    def check_write(self, job: str | None = None) -> None:
        """Raise ``Refusal`` if the request may not change a job; ``None``: what is of no job."""
        if job is not None:
            self.check_read(job)
        if not self.can_write:
            raise Refusal(
                403, "forbidden", "this token may only read; create one with --write to change jobs"
            )


OPEN = Access()
"""The access of every request while the server needs no token."""


def access_of(request: HTTPConnection) -> Access:
    """Return what a request may read and write."""
    return cast("Access", request.scope.get("zeusrun.access", OPEN))
