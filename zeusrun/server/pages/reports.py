"""What the pages read of a history: what a request may see, and the reports of jobs.

What the trials of a job show is computed once for each version of its history.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WrapValidator

from zeusrun.analysis.amounts import Total, sum_known
from zeusrun.analysis.estimates import NetAmounts, Savings
from zeusrun.energy.power_trace import PowerTrace
from zeusrun.errors import HistoryError, JobFileError
from zeusrun.history.base import HEARTBEAT_S, LEASE_S, NEWEST, UnavailableError
from zeusrun.history.rules import place_of
from zeusrun.history.sql import survey
from zeusrun.history.sql.survey import add_up, list_traces
from zeusrun.job_name import is_job_name
from zeusrun.jobfile.settings import read_settings
from zeusrun.launcher.rundir.layout import Live
from zeusrun.maintenance.running import state_of
from zeusrun.server.auth import access_of
from zeusrun.server.pages.document import NotFoundError, links_of
from zeusrun.server.refusals import LOG
from zeusrun.trial import EnergySource, TrialStatus
from zeusrun.view.belief import Belief, unknown_belief
from zeusrun.view.report.facts import JobReport, build_belief, build_facts, build_power
from zeusrun.view.report.headline import headline

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

    from pydantic import ValidatorFunctionWrapHandler
    from starlette.requests import Request

    from zeusrun.history.sql.store import SqlHistory
    from zeusrun.history.sql.survey import JobHead, Part, RunningTrial
    from zeusrun.trial import Trial
    from zeusrun.view.report.facts import PowerFacts
    from zeusrun.view.report.markup import Html

UNREADABLE = (HistoryError, ValueError, ArithmeticError)
"""What a damaged record raises, such as one with -1 epochs; or the database."""
_RUNNING = 24  # runs that go on and are shown on a page
_LATE_S = LEASE_S - 2.25 * HEARTBEAT_S  # that are left of a lease if two heartbeats are missing
_KEPT_JOBS = 6  # with up to ``NEWEST`` trials each, 10 MB
_KEPT_RUNS = 32  # runs whose figures, about 50 kB, are kept
_TRACES = 12  # of a job
_NO_SETTINGS = (
    "What the policy believes is unknown: the job file is not known here, as for runs of Zeus's "
    "own client. The next submit of this job by zeusrun sends it."
)


class Visit:
    """A request for a page, and what it may see of the history; all of it waits for a database."""

    def __init__(self, request: Request, store: SqlHistory, reports: Reports) -> None:
        self.request, self.store, self.reports = request, store, reports
        self.engine, self.access, self.links = store.engine, access_of(request), links_of(request)

    def check_job(self, job: str) -> None:
        """Raise ``NotFoundError`` unless the request may see a job, whether there is one or not."""
        if not (is_job_name(job) and self.access.covers(job)):
            raise NotFoundError("There is no such job, or you may not see it.")

    def version(self, job: str | None) -> str:
        """Return the version of a job; ``None``: of all that the request may see."""
        versions = survey.read_versions(self.engine)
        return versions.of_jobs(self.access.jobs) if job is None else versions.of(job)

    def heads(self) -> list[JobHead]:
        """Return the jobs."""
        return [head for head in survey.list_heads(self.engine) if self.access.covers(head.job)]

    def running(
        self, jobs: Collection[str] | None = None, limit: int | None = _RUNNING
    ) -> tuple[list[Live], Counter[str]]:
        """Return the newest runs of some or all jobs that go on, and how many each job has."""
        found = [
            (number, job)
            for number, job in survey.list_running(self.engine)
            if (jobs is None or job in jobs) and self.access.covers(job)
        ]
        chosen = [number for number, _ in found[::-1][:limit]]
        running = survey.read_running(self.engine, chosen)
        return [read_live(each) for each in running[::-1]], Counter(job for _, job in found)

    def hosts(self) -> list[HostFacts]:
        """Return the machines, with those schedules that the request may see."""
        hosts = [read_host(*each) for each in self.store.hosts()]
        for host in hosts:
            host.schedules = [each for each in host.schedules if self.access.covers(each.job)]
        return hosts


class Digest(NamedTuple):
    """A job as the list of jobs shows it; ``None`` is unknown."""

    changes: int  # ``JobHead.changes``
    parts: Sequence[Part]  # of what its runs have taken
    savings: Savings = Savings(0, explored=False)
    good: bool | None = None  # see ``headline``
    net: NetAmounts = NetAmounts()


@dataclass
class JobView:
    """A job as its page shows it, and what that was computed from."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    version: str | None = None
    trials: dict[tuple[int, int], Trial] = field(default_factory=dict)  # the newest 1,000
    runs: int = 0  # all of them
    report: JobReport | None = None  # of ``trials``; ``None``: no run has ended
    pictures: dict[str, Html | None] = field(default_factory=dict)  # drawn before, by name
    believed: tuple[str, str | None] | None = None  # version and settings of the belief


class Reports:
    """Reads and caches what pages show about jobs; safe for threads."""

    def __init__(self, store: SqlHistory) -> None:
        self._store = store
        self._digests: dict[str, Digest] = {}
        self._computing = threading.Lock()

        @functools.lru_cache(_KEPT_JOBS)
        def kept(_job: str) -> JobView:
            return JobView()

        @functools.lru_cache(_KEPT_RUNS)
        def drawn(*_state: Hashable) -> dict[str, Html | None]:
            return {}

        self._kept, self._drawn = kept, drawn

    def view(self, job: str) -> JobView | None:
        """Return what a job's page shows; ``None`` if there is no such job."""
        kept = self._kept(job)
        with kept.lock:
            self._read(job, kept)
            if not kept.trials:
                return None
            report = kept.report
            if report is not None:
                power = self._read_power(job, kept)
                if power != report.power:  # a trace may arrive after the end of its run
                    kept.pictures = {n: each for n, each in kept.pictures.items() if n != "power"}
                belief = self._believe(job, kept, report)
                report = kept.report = replace(report, power=power, belief=belief)
            return replace(kept)

    def digests(self, heads: Iterable[JobHead], wait_s: float) -> dict[str, Digest]:
        """Return the known digests of some jobs; wait at most ``wait_s`` for the others.

        A thread computes missing and outdated digests. Until then, a job keeps its old digest.
        """
        heads = list(heads)
        found = [(head, self._digests.get(head.job)) for head in heads]
        stale = [head for head, known in found if known is None or known.changes != head.changes]
        if stale and self._computing.acquire(blocking=False):
            worker = threading.Thread(target=self._compute, args=(stale,), daemon=True)
            worker.start()
            worker.join(wait_s)
        return {head.job: self._digests[head.job] for head in heads if head.job in self._digests}

    def pictures_of(self, trial: Trial, trace: PowerTrace | None) -> dict[str, Html | None]:
        """Return the figures of a run that were drawn before; empty once the run has changed."""
        spans = () if trace is None else trace.spans
        return self._drawn(trial.uuid, trial.status, trial.curve, trial.by_samples, spans)

    def _compute(self, stale: Sequence[JobHead]) -> None:
        try:
            for head in stale:
                try:
                    self._digests[head.job] = self._build_digest(head)
                except UnavailableError as error:  # the next request tries again
                    LOG.warning("what %s has taken is not known yet: %s", head.job, error)
                except Exception as error:  # noqa: BLE001 - a damaged record; the others count
                    LOG.warning("what %s has taken is unknown: %s", head.job, error)
                    self._digests[head.job] = Digest(head.changes, ())
        finally:
            self._computing.release()

    def _build_digest(self, head: JobHead) -> Digest:
        kept, parts = JobView(), add_up(self._store.engine, head.job)  # not those of the pages
        self._read(head.job, kept)
        if kept.report is None:
            return Digest(head.changes, parts)
        facts = kept.report.facts
        return Digest(head.changes, parts, facts.savings, headline(facts)[1], facts.net)

    def _read(self, job: str, kept: JobView) -> None:
        """Bring the trials and the facts of a job up to date."""
        found = self._store.changes(job, kept.version, NEWEST)
        if found.version == kept.version:
            return
        read = {place_of(trial): trial for trial in found.trials}
        trials = read if found.whole else {**kept.trials, **read}
        # An older one that has changed, such as by a late result, is not among the newest.
        kept.trials = {place: trials[place] for place in sorted(trials)[-NEWEST:]}
        newest, report = list(kept.trials.values()), None
        if any(trial.status.finished for trial in newest):
            facts = build_facts(job, newest)
            if found.total > len(newest):
                parts = add_up(self._store.engine, job)
                reached = sum(p.runs for p in parts if p.status == TrialStatus.REACHED.value)
                facts = replace(facts, total=build_total(job, parts), reached=reached)
            report = JobReport(facts)
        kept.runs, kept.report, kept.pictures = found.total, report, {}
        kept.version = found.version  # last: what failed is read again

    def _read_power(self, job: str, kept: JobView) -> tuple[PowerFacts, ...]:
        """Return the newest power traces of trials that have ended, oldest first."""
        by_name = {trial.trial: trial for trial in kept.trials.values() if trial.status.finished}
        found = list_traces(self._store.engine, job, min(kept.trials)[0], _TRACES)
        return tuple(
            build_power(by_name[name], trace)
            for name, record in found.items()
            if name in by_name and (trace := read_trace(record)) is not None
        )

    def _believe(self, job: str, kept: JobView, report: JobReport) -> Belief:
        settings = self._store.settings(job)
        made_of = (kept.version or "", settings)
        if kept.believed == made_of:
            return report.belief
        kept.believed = made_of
        if settings is None:
            return Belief(missing=_NO_SETTINGS)
        trials = list(kept.trials.values())
        try:
            spec = read_settings(settings, f"the job file of {job}")
        except JobFileError as error:
            return unknown_belief(error)
        return build_belief(spec, trials)


def read_trace(record: Mapping[str, object] | None) -> PowerTrace | None:
    """Return a power trace that a launcher sent; ``None`` if there is none, or it is damaged."""
    try:
        return PowerTrace.from_json(record) if record else None
    except ValueError:
        return None


def build_total(name: str, parts: Sequence[Part]) -> Total:
    """Return the total of the parts that a database has added up."""
    prices: dict[str, float] = {}
    for part in parts:
        if (price := part.sums["price"]) is not None:
            prices[part.currency or ""] = prices.get(part.currency or "", 0.0) + price

    def sum_of(amount: str, source: str | None = None) -> float | None:
        chosen = [part for part in parts if source in {None, part.energy_source}]
        return sum_known(part.sums[amount] for part in chosen)

    trained = sum(part.trained for part in parts)
    columns = {"energy": "energy_j", "price": "price", "carbon": "carbon_g"}
    return Total(
        name,
        sum(part.runs for part in parts),
        time_s=sum_of("time_s"),
        energy_j=sum_of("energy_j"),
        estimated_j=sum_of("energy_j", EnergySource.ESTIMATED.value) or 0.0,
        cost_j=sum_of("cost_j"),
        prices=prices,
        carbon_g=sum_of("carbon_g"),
        unknown={
            name: trained - sum(part.known[column] for part in parts)
            for name, column in columns.items()
        },
    )


def read_live(running: RunningTrial) -> Live:
    """Return a running trial with what its launcher sent; not alive if a heartbeat is missing."""
    live = state_of(running.trial, Live.from_json(running.live))
    return replace(live, alive=running.lease_left_s >= _LATE_S)


_MOST = 256  # GPUs or schedules of a machine


def _read(value: object, read: ValidatorFunctionWrapHandler) -> Any:  # noqa: ANN401 - any type
    """Return a value; ``None`` if it has no usable form."""
    try:
        return read(value)
    except ValueError:
        return None


def _read_each(value: object, read: ValidatorFunctionWrapHandler) -> list[Any]:
    """Return those values of a list that have a usable form."""
    items = value[:_MOST] if isinstance(value, list) else []
    return [known for each in items for known in _read([each], read) or ()]


_Text = Annotated[
    str | None, AfterValidator(lambda text: text and text[:300]), WrapValidator(_read)
]
_Integer = Annotated[int | None, Field(gt=-1e9, lt=1e9), WrapValidator(_read)]
_Number = Annotated[float | None, Field(gt=-1e9, lt=1e9), WrapValidator(_read)]
_Texts = Annotated[list[str], WrapValidator(_read_each)]


class _Facts(BaseModel):
    """Values of a report; ``None`` is unknown."""

    model_config = ConfigDict(strict=True)


class GpuFacts(_Facts):
    """One GPU when its machine last reported."""

    nvml_index: _Integer = None
    model: _Text = None
    power_w: _Number = None
    power_limit_w: _Number = None
    utilization: _Number = None
    temperature_c: _Number = None
    throttle_reasons: _Texts | None = None
    energy_source: _Text = None
    held_by: _Text = None  # the run that holds its power limit
    error: _Text = None


class ScheduleFacts(_Facts):
    """One schedule of a machine."""

    job: str
    host: _Text = None
    words: _Text = None
    next: _Texts = []  # RFC 3339
    paused: object = None
    last_run: _Text = None  # the result of the last run, at the time of the machine's report


class HostFacts(_Facts):
    """A machine; ``age_s`` seconds ago it reported."""

    host: str
    age_s: float
    version: _Text = None
    gpus: Annotated[list[GpuFacts], WrapValidator(_read_each)] = []
    schedules: Annotated[list[ScheduleFacts], WrapValidator(_read_each)] = []


def read_host(host: str, age_s: float, facts: Mapping[str, Any]) -> HostFacts:
    """Return what a machine reported; what has no usable form is left out."""
    found = HostFacts.model_validate({**facts, "host": host, "age_s": age_s})
    for schedule in found.schedules:
        schedule.host = host
    return found
