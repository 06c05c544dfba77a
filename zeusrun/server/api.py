"""The API of a shared history, version 1: what ``HttpHistory`` needs, as JSON.

Endpoints are ordinary functions: each runs in a thread of its own while it waits for the database.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import AfterValidator, BaseModel, Field, GetJsonSchemaHandler, TypeAdapter
from starlette.responses import Response

from zeusrun import __version__
from zeusrun.history import rules
from zeusrun.history.base import LEASE_S
from zeusrun.history.sql.store import SqlHistory
from zeusrun.history.sql.tokens import redeem_code
from zeusrun.job_name import JOB_NAME
from zeusrun.record_json import MAX_COUNT
from zeusrun.server.auth import Access, access_of, check_origin
from zeusrun.server.refusals import LOG, Json, Refusal, invalid, unreadable
from zeusrun.trial import Outcome, Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

API = 1
MAX_IMPORTED = 10_000  # trials in one request; a client sends more in several
_TRIAL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,149}$"


class _DescribedBy:
    """Describes a JSON object by the schema of a class that reads it itself."""

    def __init__(self, described: type) -> None:
        self.described = described

    def __get_pydantic_json_schema__(self, _: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:  # noqa: ANN401 - pydantic's
        return handler(TypeAdapter(self.described).core_schema)


def _plain_json(value: dict[str, Any]) -> dict[str, Any]:
    json.dumps(value, allow_nan=False)  # NaN is no JSON: a page could not read it
    return value


TrialJson = Annotated[dict[str, Any], _DescribedBy(Trial)]
OutcomeJson = Annotated[dict[str, Any], _DescribedBy(Outcome)]
FreeJson = Annotated[dict[str, Any], AfterValidator(_plain_json)]
JobName = Annotated[str, Path(pattern=JOB_NAME, description="The name of a job.")]
TrialName = Annotated[str, Path(pattern=_TRIAL_NAME, description="The id or the uuid of a trial.")]
HostName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
TurnNumber = Annotated[int, Path(ge=1, le=MAX_COUNT, description="The number of a turn.")]
Version = Annotated[str | None, Query(max_length=80, description="The version that is known.")]
Last = Annotated[
    int | None, Query(ge=0, le=1_000_000, description="Only so many, the newest ones.")
]


class NewTrial(BaseModel):
    """A trial to begin, and the version of the history and the turn in which it was chosen."""

    trial: TrialJson
    after: str = Field(max_length=80)
    turn: int = Field(0, ge=0, le=MAX_COUNT)


class AskedTurn(BaseModel):
    """The number of a turn to renew; 0 for a new one."""

    number: int = Field(0, ge=0, le=MAX_COUNT)


class Trials(BaseModel):
    """Trials of one job, in order."""

    trials: list[TrialJson] = Field(max_length=MAX_IMPORTED)


class Forgotten(BaseModel):
    """Whether policies ignore a trial."""

    forgotten: bool


class Heartbeat(BaseModel):
    """What a launcher knows of its run while it runs."""

    live: FreeJson | None = None


class JobSettings(BaseModel):
    """The job file of a job."""

    settings: str = Field(max_length=1 << 20)


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable")
    return text


class Redeemed(BaseModel):
    """A code, and the name of the machine that uses it."""

    code: str = Field(max_length=100)
    host: Annotated[str, Field(min_length=1, max_length=253), AfterValidator(_check_printable)]


async def get_history(request: Request) -> SqlHistory:
    """Return the history of this server."""
    history: SqlHistory = request.app.state.history
    return history


async def get_access(request: Request) -> Access:
    """Return what the request may read and write."""
    return access_of(request)


History = Annotated[SqlHistory, Depends(get_history)]
Allowed = Annotated[Access, Depends(get_access)]

router = APIRouter(prefix=f"/api/v{API}", tags=["zeusrun"])


@router.get("")
def describe(history: History, access: Allowed) -> Response:
    """Describe the server: its API, its version, its clock, its database."""
    incarnation, now = history.identify()
    return Json(
        {
            "api": API,
            "version": __version__,
            "incarnation": incarnation,
            "now": now,
            "lease_s": LEASE_S,
            "access": {"token": access.token, "jobs": access.jobs, "write": access.can_write},
        }
    )


@router.get("/connect")
async def find_server() -> Response:
    """Say that this is a zeusrun server, so that no code is sent to another one."""
    return Json({"api": API})


@router.post("/connect", status_code=201)
async def redeem(request: Request, body: Redeemed, history: History) -> Response:
    """Give another machine a token of its own for a code, which needs no token: it is one."""
    check_origin(request.headers)
    client = request.client.host if request.client else ""
    made = await run_in_threadpool(redeem_code, history.engine, body.code, body.host)
    if made is None:
        raise Refusal(
            400,
            "code",
            "this code cannot be used: it is mistyped, was used before or is older than an "
            "hour, or its token is no longer valid; `zeusrun token create` makes another",
        )
    LOG.info("connect %s: token %s from %s", body.host, made[0], client)
    return Json({"token": made[1]}, 201)


@router.get("/jobs")
def list_jobs(history: History, access: Allowed) -> Response:
    """List the jobs that have a history."""
    return Json({"jobs": [job for job in history.jobs() if access.covers(job)]})


@router.get("/jobs/{job}/trials")
def list_trials(
    job: JobName, history: History, access: Allowed, after: Version = None, last: Last = None
) -> Response:
    """List the trials of a job that changed since a version, or else the newest ones."""
    access.check_read(job)
    found = history.changes(job, after, last)
    return Json({**found._asdict(), "trials": [each.to_json() for each in found.trials]})


@router.get("/jobs/{job}/unfinished")
def list_unfinished(job: JobName, history: History, access: Allowed) -> Response:
    """List the trials of a job that have not ended."""
    access.check_read(job)
    return Json({"trials": [each.to_json() for each in history.unfinished(job)]})


@router.post("/jobs/{job}/turns")
def ask_turn(job: JobName, body: AskedTurn, history: History, access: Allowed) -> Response:
    """Take a turn to choose a trial, or renew one; choose once nobody is ahead."""
    access.check_write(job)
    return Json(history.ask_turn(job, body.number)._asdict())


@router.delete("/jobs/{job}/turns/{number}", status_code=204, response_class=Response)
def leave_turn(job: JobName, number: TurnNumber, history: History, access: Allowed) -> Response:
    """End a turn without beginning a trial."""
    access.check_write(job)
    history.leave_turn(job, number)
    return Response(status_code=204)


@router.post("/jobs/{job}/trials", status_code=201)
def begin(job: JobName, body: NewTrial, history: History, access: Allowed) -> Response:
    """Begin a trial; the same trial again changes nothing."""
    access.check_write(job)
    trial = _read_trial(body.trial, job)
    with _refused():
        stored = history.begin(trial, after=body.after, turn=body.turn)
    access.log("begin", stored.trial)
    return Json({"trial": stored.to_json()}, 201)


@router.post("/jobs/{job}/imports")
def add(job: JobName, body: Trials, history: History, access: Allowed) -> Response:
    """Add trials of another history, or trials that ran while the server did not respond."""
    access.check_write(job)
    trials = [_read_trial(record, job) for record in body.trials]
    with _refused():
        stored = history.add(trials)
    access.log("import", job)
    return Json({"trials": [each.to_json() for each in stored]})


@router.get("/trials/{trial}")
def read(trial: TrialName, history: History, access: Allowed) -> Response:
    """Return a trial."""
    _check(history, access, trial)
    found = history.find(trial)
    if found is None:
        raise rules.unknown_trial(trial)
    return Json({"trial": found.to_json()})


@router.post("/trials/{trial}/outcome")
def finish(trial: TrialName, body: OutcomeJson, history: History, access: Allowed) -> Response:
    """Store how a trial ended; the same outcome again changes nothing."""
    _check(history, access, trial, write=True)
    with _refused(unreadable):
        outcome = Outcome.from_json(body)
    with _refused():
        stored = history.finish(trial, outcome)
    access.log("finish", stored.trial)
    return Json({"trial": stored.to_json()})


@router.post("/trials/{trial}/forgotten")
def forget(trial: TrialName, body: Forgotten, history: History, access: Allowed) -> Response:
    """Mark a trial as one to learn nothing from, or remove this mark."""
    _check(history, access, trial, write=True)
    with _refused():
        stored = history.forget(trial, forgotten=body.forgotten)
    access.log("forget" if body.forgotten else "remember", stored.trial)
    return Json({"trial": stored.to_json()})


@router.put("/trials/{trial}/lease")
def renew(trial: TrialName, body: Heartbeat, history: History, access: Allowed) -> Response:
    """Renew the lease of a running trial; learn whether it is to be cancelled."""
    _check(history, access, trial, write=True)
    return Json({"cancel": history.renew(trial, body.live)})


@router.post("/trials/{trial}/cancel")
def cancel(trial: TrialName, history: History, access: Allowed) -> Response:
    """Ask the launcher of a running trial to cancel it."""
    _check(history, access, trial, write=True)
    asked = history.ask_to_cancel(trial)
    if asked:
        access.log("cancel", trial)
    return Json({"asked": asked})


@router.get("/trials/{trial}/lease")
def read_lease(trial: TrialName, history: History, access: Allowed) -> Response:
    """Return what the launcher of a trial sent last."""
    _check(history, access, trial)
    return Json({"live": history.live(trial)})


@router.put("/trials/{trial}/trace", status_code=204, response_class=Response)
def keep_trace(trial: TrialName, body: FreeJson, history: History, access: Allowed) -> Response:
    """Keep the power over time of a trial."""
    _check(history, access, trial, write=True)
    history.keep_trace(trial, body)
    return Response(status_code=204)


@router.put("/jobs/{job}/settings", status_code=204, response_class=Response)
def keep_settings(job: JobName, body: JobSettings, history: History, access: Allowed) -> Response:
    """Keep the job file of a job, without secrets."""
    access.check_write(job)
    if not body.settings.replace("\n", "").replace("\t", "").isprintable():
        raise invalid("settings: a job file has no control characters")
    with _refused():
        history.keep_settings(job, body.settings)
    access.log("settings", job)
    return Response(status_code=204)


@router.put("/hosts/{host}", status_code=204, response_class=Response)
def report_host(host: HostName, body: FreeJson, history: History, access: Allowed) -> Response:
    """Keep what a machine reports of itself."""
    access.check_write()
    history.report_host(host, body)
    return Response(status_code=204)


@contextlib.contextmanager
def _refused(refuse: Callable[[ValueError], Refusal] = invalid) -> Iterator[None]:
    """Refuse what cannot be stored; with ``unreadable``, what cannot be read."""
    try:
        yield
    except ValueError as error:
        raise refuse(error) from None


def _read_trial(record: dict[str, Any], job: str) -> Trial:
    with _refused(unreadable):
        trial = Trial.from_json(record)
    if trial.job != job:
        raise invalid(f"trial {trial.trial} is of job {trial.job!r}, not of {job!r}")
    return trial


def _check(history: SqlHistory, access: Access, name: str, *, write: bool = False) -> None:
    """Check the access to a trial; for other jobs, this does not say whether the trial exists."""
    check = access.check_write if write else access.check_read
    job = rules.job_of(name)
    if job is None and access.jobs != "*":  # a uuid
        trial = history.find(name)
        if trial is None or not access.covers(trial.job):
            raise rules.unknown_trial(name)
        job = trial.job
    check(job)
