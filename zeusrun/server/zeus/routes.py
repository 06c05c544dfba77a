"""The routes of Zeus 0.16's batch size optimizer, and what each does with the history."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from zeusrun.clock import timestamp
from zeusrun.history.base import NEWEST, Conflict
from zeusrun.history.sql.zeus_jobs import ZeusJob, ZeusJobs
from zeusrun.reasons import ReasonCode
from zeusrun.server.auth import Access, access_of, arrived_t
from zeusrun.server.refusals import Refusal, overloaded
from zeusrun.server.zeus import job as zeus
from zeusrun.server.zeus.messages import Report, ReportResponse, TrialId, ZeusSettings, is_id
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from zeusrun.bandit.registry import Policy
    from zeusrun.history.sql.store import SqlHistory
    from zeusrun.trial import Outcome, Trial

MIGRATE = "/migrate"
"""Ends the server's URL of a client whose settings replace those registered."""
PATIENCE_S = 4.0
"""The client waits 5 s for a batch size. A trial that began later would have no training."""
_RECENT = 20  # trials that show how long an epoch takes
_GONE = "its client had gone before the answer"
_DELETED = "its job was deleted by DELETE /jobs"
_LATE = "its lease expired, and it goes on: it has reported again"


class Registered(NamedTuple):
    """A job in the table of jobs."""

    job: str  # the name of its history
    settings: ZeusSettings
    since: int  # its first recurrence that counts; earlier ones are of a deleted job


def build_router(history: SqlHistory, policy: Policy) -> APIRouter:
    """Return Zeus's routes over a history; the policy chooses the batch sizes of all jobs."""
    routes = _Routes(history, policy)
    # The client sends JSON without a content type.
    router = APIRouter(strict_content_type=False)
    is_new: dict[int | str, dict[str, Any]] = {
        201: {"model": ZeusSettings, "description": "The job is new."}
    }
    router.post("/jobs", responses=is_new)(routes.register)
    router.get("/jobs/batch_size")(routes.choose_batch_size)
    router.post("/report")(routes.report)
    router.patch("/trials")(routes.end_trial)
    router.delete("/jobs")(routes.delete_job)
    both = APIRouter(tags=["zeus"])
    both.include_router(router)
    both.include_router(router, prefix=MIGRATE, include_in_schema=False)
    return both


class _Routes:
    """The endpoints, over a shared history; safe for threads, processes and machines.

    Each raises ``Refusal`` if the request names what does not exist, or may not change it.
    """

    def __init__(self, history: SqlHistory, policy: Policy) -> None:
        self._history = history
        self._jobs = ZeusJobs(history.engine)
        self._policy = policy
        # The requests of a job wait for each other here, in order and without a thread. Those of
        # other server processes conflict with them, and choose again.
        self._locks = [asyncio.Lock() for _ in range(64)]

    def register(self, request: Request, response: Response, job: ZeusSettings) -> ZeusSettings:
        """Register a job, or check that it is registered with the same settings."""
        access = access_of(request)
        self._allowed(job.job_id or f"{job.job_id_prefix}-", access)
        migrate = request.scope["path"].endswith(f"{MIGRATE}/jobs")
        while True:
            new = job
            if job.job_id is None:
                job_id = f"{job.job_id_prefix}-{secrets.token_hex(4)}"
                new = job.model_copy(update={"job_id": job_id})
            known = self._find(new.job_id or "")
            if known is None:
                if self._add(new, access):
                    response.status_code = 201
                    return new
                continue  # another request was faster
            if job.job_id is None:
                continue
            differences = known.settings.differences(new)
            if differences and not migrate:
                raise Refusal(409, "conflict", _describe_mismatch(new, differences))
            if differences:
                self._jobs.change(new.job_id or "", _to_json(new, known.since))
                access.log("change zeus job", known.job)
            return new

    async def choose_batch_size(self, request: Request, response: Response, job_id: str) -> TrialId:
        """Begin a training: return its batch size and its number."""
        response.headers["Cache-Control"] = "no-store"
        access, until_t = access_of(request), arrived_t(request) + PATIENCE_S
        await request.body()  # what follows it shows whether the client has gone
        known = await run_in_threadpool(self._registered, job_id, access, 400)
        async with self._turn(known.job, until_t):
            trial = await run_in_threadpool(self._choose, known, access, until_t)
        if await request.is_disconnected():  # nobody knows that it has begun
            gone = trial.ended_as(TrialStatus.CANCELLED, ReasonCode.NOT_BEGUN, _GONE, timestamp())
            await run_in_threadpool(self._finish, trial, gone, access)
        size, number = trial.global_batch_size, trial.recurrence
        return TrialId(job_id=job_id, batch_size=size, trial_number=number)

    def report(self, request: Request, result: Report) -> ReportResponse:
        """Report what a training has taken and reached so far; learn whether it goes on."""
        access = access_of(request)
        known = self._registered(result.job_id, access, 400)
        stored = self._trial(known, result, 400)
        if stored.status.finished and stored.status is not TrialStatus.LOST:
            return _stops(stored, f"trial {stored.recurrence} has ended already: ")
        before = self._training(stored)
        training = before.with_report(result)
        if training is before:
            return _goes_on("the report is older than the last one")
        problem = zeus.pose_problem(known.settings, stored.recurrence)
        outcome = training.judge(problem, self._policy, result, timestamp())
        if outcome is None:
            if not self._keep(stored, training):
                return _goes_on("the target is not reached yet")
            code, why = ReasonCode.CANCELLED, "somebody has asked to cancel it"
            outcome = training.trial.ended_as(TrialStatus.CANCELLED, code, why, timestamp())
        return _stops(self._finish(stored, outcome, access))

    def end_trial(self, request: Request, trial: TrialId) -> None:
        """End a training: if no rule stopped it, it died."""
        access = access_of(request)
        known = self._registered(trial.job_id, access, 404)
        stored = self._trial(known, trial, 404)
        if not stored.status.finished or stored.status is TrialStatus.LOST:
            self._finish(stored, self._training(stored).end(timestamp()), access)

    def delete_job(self, request: Request, job_id: str) -> None:
        """Remove a job; its trials stay in the history, and count no longer."""
        access = access_of(request)
        known = self._registered(job_id, access, 404)
        if not self._jobs.remove(job_id):
            raise _unknown_job(job_id, 404)
        access.log("delete zeus job", known.job)
        for trial in self._history.unfinished(known.job):
            if trial.run_dir.startswith(zeus.run_directory(job_id)):
                ended_as = self._training(trial).trial.ended_as(
                    TrialStatus.CANCELLED, ReasonCode.JOB_DELETED, _DELETED, timestamp()
                )
                self._finish(trial, ended_as, access)

    def _find(self, job_id: str) -> Registered | None:
        found = self._jobs.find(job_id) if is_id(job_id) else None  # PostgreSQL refuses NUL
        if found is None:
            return None
        stored = found.settings
        return Registered(
            found.job, ZeusSettings.model_validate(stored["job"]), int(stored["since"])
        )

    def _allowed(self, job_id: str, access: Access) -> Registered | None:
        """Return a job that a request may change; ``None`` if it is not registered."""
        found = self._find(job_id)
        access.check_write(next(zeus.job_names(job_id)) if found is None else found.job)
        return found

    def _registered(self, job_id: str, access: Access, status: int) -> Registered:
        found = self._allowed(job_id, access)
        if found is None:
            raise _unknown_job(job_id, status)
        return found

    def _add(self, settings: ZeusSettings, access: Access) -> bool:
        """Register a job under the first name that no other job has."""
        job_id = settings.job_id or ""
        for name in zeus.job_names(job_id):
            newest = self._history.trials(name, NEWEST)
            of_others = newest and not newest[-1].run_dir.startswith(zeus.run_directory(job_id))
            if of_others or self._jobs.find(job=name) is not None:
                continue
            access.check_write(name)  # it may be another name than that of the request
            since = 1 + max((trial.recurrence for trial in newest), default=0)
            is_new = self._jobs.add(ZeusJob(job_id, name, _to_json(settings, since)))
            if is_new:
                access.log("create zeus job", name)
            return is_new
        raise Refusal(409, "conflict", f"no history is free for {job_id!r}; use another job_id")

    def _choose(self, known: Registered, access: Access, until_t: float) -> Trial:
        """Choose the batch size of a new training, and begin its trial.

        ``until_t``: nothing begins later, by the monotonic clock.
        """
        while time.monotonic() < until_t:
            with contextlib.suppress(Conflict):
                return self._begin(known, access, until_t)
            time.sleep(random.uniform(0.0, 0.05))  # noqa: S311 - no secret
        raise _too_busy(known.job)

    def _begin(self, known: Registered, access: Access, until_t: float) -> Trial:
        snapshot = self._history.snapshot(known.job, NEWEST)
        recurrence = max((trial.recurrence for trial in snapshot.trials), default=0) + 1
        trials = [trial for trial in snapshot.trials if trial.recurrence >= known.since]
        decision = zeus.choose(known.settings, self._policy, trials, recurrence)
        drafted = zeus.begin_trial(
            known.settings,
            known.job,
            recurrence,
            decision,
            started_at=timestamp(),
            uuid=uuid.uuid4().hex,
            host=access.client,
        )
        training = zeus.ReportedTraining(
            drafted, decision.bound, zeus.first_lease_s(trials[-_RECENT:])
        )
        trial = self._history.begin(
            drafted,
            after=snapshot.version,
            until_t=until_t,
            live=training.to_json(timestamp()),
            lease_s=training.lease_s,
        )
        access.log("begin", trial.trial)
        return trial

    def _trial(self, known: Registered, named: TrialId, status: int) -> Trial:
        """Return the trial that a client names; ``Refusal`` if it is none of the job's."""
        trial = self._history.find(f"{known.job}-{named.trial_number}-1")
        if (
            trial is None
            or trial.run_dir != zeus.run_directory(named.job_id, named.trial_number)
            or trial.global_batch_size != named.batch_size
        ):
            raise Refusal(
                status,
                "unknown",
                f"job {named.job_id!r} has no trial {named.trial_number} with batch size "
                f"{named.batch_size}; GET /jobs/batch_size begins one",
            )
        return trial

    def _training(self, stored: Trial) -> zeus.ReportedTraining:
        return zeus.ReportedTraining.from_json(stored, self._history.live(stored.trial))

    def _keep(self, stored: Trial, training: zeus.ReportedTraining) -> bool:
        """Store a training that goes on, and renew its lease; return whether it is cancelled."""
        if stored.status is TrialStatus.LOST:
            at = stored.finished_at or timestamp()
            late = training.trial.ended_as(TrialStatus.LOST, ReasonCode.REPORTED_LATE, _LATE, at)
            self._finish(stored, late)
            return False
        live = training.to_json(timestamp())
        return self._history.renew(stored.trial, live, training.lease_s)

    def _finish(self, stored: Trial, outcome: Outcome, access: Access | None = None) -> Trial:
        """Store how a trial ended; if another request was faster, return what that stored.

        ``access``: of the request that ended it, for the log.
        """
        try:
            ended = self._history.finish(stored.trial, outcome)
        except ValueError:
            found = self._history.find(stored.trial)
            if found is None or not found.status.finished:
                raise
            ended = found
        if access is not None:
            access.log("finish", stored.trial)
        return ended

    @contextlib.asynccontextmanager
    async def _turn(self, job: str, until_t: float) -> AsyncIterator[None]:
        lock = self._locks[hash(job) % len(self._locks)]
        try:
            await asyncio.wait_for(lock.acquire(), until_t - time.monotonic())
        except asyncio.TimeoutError:
            raise _too_busy(job) from None
        try:
            yield
        finally:
            lock.release()


def _to_json(settings: ZeusSettings, since: int) -> dict[str, Any]:
    return {"job": settings.model_dump(mode="json"), "since": since}


def _goes_on(why: str) -> ReportResponse:
    return ReportResponse(stop_train=False, converged=False, message=f"continue: {why}")


def _stops(trial: Trial, before: str = "") -> ReportResponse:
    # The client adds a sentence of its own.
    end = f"batch size {trial.global_batch_size} is {trial.status.value}: {trial.reason}."
    reached = trial.status is TrialStatus.REACHED
    return ReportResponse(stop_train=True, converged=reached, message=f"{before}{end}")


def _too_busy(job: str) -> Refusal:
    return overloaded(f"too many trainings of {job} begin at once; try again in a few seconds")


def _describe_mismatch(settings: ZeusSettings, differences: list[str]) -> str:
    return (
        f"job {settings.job_id!r} is registered with other settings: {'; '.join(differences)}. "
        "Use another job_id; or keep its history under the new settings: end the server's URL with "
        "/migrate"
    )


def _unknown_job(job_id: str, status: int) -> Refusal:
    return Refusal(status, "unknown", f"unknown job {job_id[:200]!r}; register it by POST /jobs")
