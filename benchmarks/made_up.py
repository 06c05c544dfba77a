"""Serves a made-up history, to look at the server's page; nothing in it was measured.

``python benchmarks/made_up.py --port 8787``; needs the extra ``server``.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import signal
import sys
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from zeusrun import __version__
from zeusrun.cost import cost_j
from zeusrun.energy.power_trace import PowerSpan, PowerTrace
from zeusrun.errors import ZeusrunError
from zeusrun.trial import CurvePoint, EnergySource, Outcome, PowerPoint, Stage, Trial, TrialStatus
from zeusrun.trial.values import NoisePoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.history.sql.store import SqlHistory

JOBS = ("forecast", "ranking", "speech-nightly", "segmentation", "embeddings")
SIZES = (64, 128, 256, 512, 1024)
DEFAULT, BEST = 128, 512
GPUS = 8
MAX_W = 700.0
LIMIT_W = 500.0
TARGET, MAX_EPOCHS, ETA = 0.92, 30, 0.5
SAMPLES = 51_200  # of an epoch
HOME = Path("/srv/zeusrun")
_RECURRENCES = (48, 30, 61, 14, 5)  # of each job
_SHARES = (0.7, 0.35, 0.0)  # of its training that a run of each of the first jobs has done now
_POWERED = 8  # runs of each job whose power is known
_SPAN_S = 3.0
_GRAMS, _EUROS, _PUE = 381.0, 0.247, 1.15  # of a kWh
_EPOCHS = {64: 11.0, 128: 11.4, 256: 12.3, 512: 14.0, 1024: 21.0}
_EPOCH_S = {64: 54.0, 128: 38.0, 256: 29.0, 512: 23.5, 1024: 20.0}
_WATTS = {64: 330.0, 128: 390.0, 256: 440.0, 512: 448.0, 1024: 470.0}
_FIRST = (128, 256, 128, 64, 512, 1024, 256, 128, 512, 64, 256, 512, 128)
_SETTINGS = f"""name: {{name}}
script: {{script}}
launch: {{{{nproc_per_node: {GPUS}}}}}
objective:
  {{{{metric: val_accuracy, target: {TARGET}, max_epochs: {MAX_EPOCHS}, eta_knob: {ETA}}}}}
batch_size: {{{{default: {DEFAULT}, candidates: {list(SIZES)}}}}}
"""
_CRASH = "RuntimeError: DataLoader worker (pid 4127) is killed by signal: Killed"
_STALL = (
    "the training has stalled: no optimizer step for 48 s, the longest pause before was 2.1 s; "
    "all ranks are in torch/utils/data/dataloader.py:1481 (_try_get_data)"
)


@contextlib.contextmanager
def made_up_database() -> Iterator[str]:
    """Fill a temporary database; yield its URL. It is gone afterwards, also after SIGTERM."""
    from zeusrun.history.sql.schema import create_tables  # noqa: PLC0415 - benchmarks need no extra
    from zeusrun.history.sql.store import SqlHistory  # noqa: PLC0415 - as above

    # Both would kill the process, and the files would stay. Ctrl-C raises an error already.
    usual = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if usual[signal.SIGHUP] is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminate)
    try:
        with tempfile.TemporaryDirectory(prefix="zeusrun-demo-") as folder:
            url = f"sqlite:///{folder}/history.db"
            with contextlib.closing(SqlHistory(url)) as store:
                create_tables(store.engine)
                fill(store)
            yield url
    finally:
        for each, handler in usual.items():
            signal.signal(each, handler)


def _terminate(_number: int, _frame: object) -> None:
    """Do what SIGTERM does now: a server that runs stops cleanly."""
    signal.raise_signal(signal.SIGTERM)


def fill(store: SqlHistory) -> None:
    """Write five jobs with power traces, three runs that run now, machines and schedules."""
    rng, now = random.Random(19), datetime.now(timezone.utc)  # noqa: S311 - no secret
    for number, (job, count) in enumerate(zip(JOBS, _RECURRENCES, strict=True)):
        host = f"gpu-node-{number % 3 + 1}"
        began = now - timedelta(days=count, hours=5 + 7 * number)
        trials = [replace(each, host=host) for each in make_trials(count, rng, job, began)]
        if job == JOBS[-1]:  # a small job on a CPU, of which little is known
            on_cpu: dict[str, Any] = {"gpu_model": None, "gpu_count": 0, "power_limit_w": None}
            on_cpu["energy_source"] = EnergySource.ESTIMATED
            trials = [replace(each, **on_cpu) for each in trials]
        store.add(trials)
        if job != JOBS[-1]:
            store.keep_settings(job, settings_of(job))
            for trial in trials[-_POWERED:]:
                store.keep_trace(trial.trial, _make_trace(trial, rng).to_json())
        if number < len(_SHARES):
            _begin(store, trials[-1], _SHARES[number], now, rng)
    for number, job in enumerate(JOBS[:3], 1):
        store.report_host(f"gpu-node-{number}", _make_facts(job, now, rng, busy=number < 3))


def settings_of(job: str, script: object = "/srv/jobs/train.py") -> str:
    """Return the text of a job file."""
    return _SETTINGS.format(name=job, script=script)


def make_trials(
    recurrences: int,
    rng: random.Random,
    job: str = JOBS[0],
    began: datetime = datetime(2026, 3, 2, 1, 0, tzinfo=timezone.utc),
    home: Path = HOME,
) -> list[Trial]:
    """Make up the trials of a nightly job, oldest first; there are more than recurrences."""
    trials: list[Trial] = []
    for recurrence in range(1, recurrences + 1):
        size = _FIRST[recurrence - 1] if recurrence <= len(_FIRST) else BEST
        if recurrence > len(_FIRST) and rng.random() < 0.1:
            size = rng.choice(SIZES)
        attempt, status = 0, None
        while status is not TrialStatus.REACHED:
            attempt += 1
            at = began + timedelta(days=recurrence, minutes=45 * (attempt - 1))
            trial, outcome = _make_run((job, recurrence, attempt), size, at, home, rng)
            trials.append(trial.finish(outcome))
            status, size = outcome.status, BEST if size != BEST else 256
    return trials


def _make_run(
    name: tuple[str, int, int], size: int, began: datetime, home: Path, rng: random.Random
) -> tuple[Trial, Outcome]:
    job, recurrence, attempt = name
    needs = _EPOCHS[size] * math.exp(rng.gauss(0, 0.07))
    bad, status = rng.random(), TrialStatus.REACHED
    if size == SIZES[-1] and bad < 0.6:
        status = TrialStatus.STOPPED
    elif bad > 0.975:
        status = TrialStatus.FAILED
    share = {TrialStatus.STOPPED: 0.7, TrialStatus.FAILED: rng.random()}.get(status, 1.0)
    epochs = max(1, round(needs * share))
    epoch_s = _EPOCH_S[size] * math.exp(rng.gauss(0, 0.02))
    watts = GPUS * _WATTS[size] * (1 + rng.gauss(0, 0.01))
    values = []
    for epoch in range(1, epochs + 1):
        missing = math.exp(-4.2 * epoch / needs) - math.exp(-4.2)
        value = TARGET + 0.004 - 0.5 * missing + rng.gauss(0, 0.004)
        value = min(value, TARGET - 0.003) if epoch < needs - 0.5 else max(value, TARGET + 0.0005)
        values.append(round(value if status is TrialStatus.REACHED else min(value, 0.916), 4))
    curve = tuple(
        CurvePoint(epoch, epoch * epoch_s, epoch * epoch_s * watts, value)
        for epoch, value in enumerate(values, 1)
    )
    time_s, energy_j = epochs * epoch_s, epochs * epoch_s * watts
    reason = {
        TrialStatus.REACHED: f"val_accuracy {values[-1]:.4g} reached {TARGET:g}",
        TrialStatus.STOPPED: "at this pace it would cost more than twice the cheapest run",
        TrialStatus.FAILED: _CRASH,
    }[status]
    exploring = recurrence <= len(_FIRST) or size != BEST
    why = f"{size} is the cheapest batch size so far; trying another is not expected to save enough"
    if recurrence == 1:
        why = f"{size} is the default, and nothing has reached the target yet"
    elif exploring:
        why = f"{size} may be cheaper than the others, and its cost is known from too few runs"
    trial = Trial(
        trial=f"{job}-{recurrence}-{attempt}",
        job=job,
        recurrence=recurrence,
        attempt=attempt,
        global_batch_size=size,
        power_limit_w=LIMIT_W,
        world_size=GPUS,
        gpu_model="NVIDIA H100 80GB HBM3",
        gpu_count=GPUS,
        started_at=began.isoformat(timespec="milliseconds"),
        metric="val_accuracy",
        run_dir=str(home / "runs" / job / f"{job}-{recurrence}-{attempt}"),
        stage=Stage.EXPLORE if exploring else Stage.EXPLOIT,
        why=why,
        mode="max",
        target=TARGET,
        max_epochs=MAX_EPOCHS,
        eta_knob=ETA,
        default_batch_size=DEFAULT,
        uuid=uuid4().hex,
    )
    outcome = Outcome(
        status=status,
        reason=reason,
        finished_at=(began + timedelta(seconds=time_s + 30)).isoformat(timespec="milliseconds"),
        startup_s=22 + rng.random() * 6,
        time_s=time_s,
        energy_j=energy_j,
        energy_source=EnergySource.COUNTER,
        max_power_w=GPUS * MAX_W,
        cost_j=cost_j(energy_j, GPUS * MAX_W, time_s, ETA),
        epochs=epochs,
        steps=epochs * SAMPLES // size,
        whole_time_s=time_s,
        whole_energy_j=energy_j,
        whole_epochs=epochs,
        whole_steps=epochs * SAMPLES // size,
        best_metric=max(values),
        curve=curve,
        power_profile=(PowerPoint(LIMIT_W, SAMPLES / size / epoch_s, watts),),
        profiling_cost_j=0.02 * energy_j if exploring and attempt == 1 else None,
        shared=False,
        noise_curve=_make_noise(size, epochs, needs, rng),
        gradients_of="ranks",
        price=energy_j / 3.6e6 * _EUROS * _PUE,
        currency="EUR",
        carbon_g=energy_j / 3.6e6 * _GRAMS * _PUE,
        pue=_PUE,
        warnings=(_STALL,) if rng.random() < 0.03 else (),
    )
    return trial, outcome


def _make_noise(size: int, epochs: int, needs: float, rng: random.Random) -> tuple[NoisePoint, ...]:
    """Make up a noise scale that rises; small batch sizes show only a lower bound."""
    points = []
    for epoch in range(1, epochs + 1):
        at = epoch - 0.4
        noise = 120 * math.exp(3.4 * min(1, at / needs) ** 0.7)
        width = 1.1 + 0.35 * noise / (12 * size)
        found = noise * width ** rng.gauss(0, 0.4)
        value, high = (found, found * width**1.2) if noise < 12 * size else (None, None)
        points.append(NoisePoint(round(at * SAMPLES), at, found / width, value, high))
    return tuple(points)


def _make_trace(trial: Trial, rng: random.Random) -> PowerTrace:
    """Make up the power of a run: less at its start and while it evaluates, or when hot."""
    startup_s, time_s = trial.startup_s or 0.0, trial.time_s or 1.0
    usual_w, epoch_s = (trial.energy_j or 0.0) / time_s, time_s / (trial.epochs or 1)
    hot, spans = rng.random() < 0.4, []
    for number in range(int((time_s + startup_s) / _SPAN_S)):
        t = (number + 0.5) * _SPAN_S
        trained_s = t - startup_s
        heats = hot and 0.55 < trained_s / time_s < 0.68
        evaluates = trained_s % epoch_s > 0.9 * epoch_s
        level = 0.18 if trained_s < 0 else 0.55 if evaluates else 0.9 if heats else 1.04
        watts = usual_w * (level + rng.gauss(0, 0.01))
        spans.append(
            PowerSpan(t, 0.98 * watts, watts, 1.02 * watts, GPUS * LIMIT_W, throttled=heats)
        )
    throttled = {"hw_thermal_slowdown": 0.13} if hot else {}
    return PowerTrace(tuple(spans), GPUS, whole=True, throttled=throttled)


def _begin(store: SqlHistory, last: Trial, share: float, now: datetime, rng: random.Random) -> None:
    """Write the run after the last one of its job; it has done a share of its training."""
    name, status = (last.job, last.recurrence + 1, 1), None
    while status is not TrialStatus.REACHED:
        trial, outcome = _make_run(name, BEST, now, HOME, rng)
        status = outcome.status
    done = outcome.curve[: int(share * len(outcome.curve))]
    began = now - timedelta(seconds=(done[-1].time_s if done else 0) + 40)
    trial = replace(trial, host=last.host, started_at=began.isoformat(timespec="milliseconds"))
    store.begin(trial, after=store.snapshot(last.job).version)
    live: dict[str, Any] = {**trial.to_json(), "updated_at": now.isoformat(), "pid": None}
    if done:
        energy_j, time_s = done[-1].energy_j or 0.0, done[-1].time_s
        live |= {"curve": [list(each) for each in done], "time_s": time_s, "power_w": 8 * 447.0}
        live |= {"energy_j": energy_j, "energy_source": "counter", "epochs": done[-1].epoch}
        live |= {"whole_energy_j": energy_j, "whole_time_s": time_s, "whole_epochs": done[-1].epoch}
        live["best_metric"] = max(point.value or 0.0 for point in done)
        live["cost_j"] = cost_j(energy_j, GPUS * MAX_W, time_s, ETA)
        live["log"] = [f"epoch {each.epoch}: {trial.metric} {each.value:.4f}" for each in done]
    store.renew(trial.trial, live, 86400.0)  # it is not LOST while somebody looks at it


def _make_facts(job: str, now: datetime, rng: random.Random, *, busy: bool) -> dict[str, Any]:
    """Return what a machine would report."""
    gpus = [
        {
            "nvml_index": index,
            "model": "NVIDIA H100 80GB HBM3",
            "power_w": rng.gauss(446, 9) if busy else rng.gauss(71, 2),
            "power_limit_w": LIMIT_W if busy else MAX_W,
            "utilization": rng.uniform(0.94, 0.99) if busy else 0.0,
            "temperature_c": rng.gauss(66, 2) if busy else rng.gauss(34, 1),
            "throttle_reasons": ["sw_thermal_slowdown"] if busy and index == 3 else [],
            "energy_source": "counter",
        }
        for index in range(GPUS)
    ]
    tomorrow = (now + timedelta(days=1)).replace(hour=1, minute=0, second=0, microsecond=0)
    schedule = {
        "job": job,
        "words": "every day at 01:00",
        "tz": "Europe/Berlin",
        "next": [tomorrow.isoformat()],
        "last_run": "the target was reached",
        "paused": not busy,
    }
    return {"version": __version__, "gpus": gpus, "schedules": [schedule]}


def _port(text: str) -> int:
    if not 0 <= int(text) < 1 << 16:
        raise argparse.ArgumentTypeError("a port is a number from 0 to 65535")
    return int(text)


def main() -> None:
    """Serve it on this machine until the server is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=_port, default=8787)
    given = parser.parse_args()
    from zeusrun.server.run import listen, run  # noqa: PLC0415 - benchmarks need no extra
    from zeusrun.server.settings import ServerSettings  # noqa: PLC0415 - as above

    with made_up_database() as url:
        listening = listen(ServerSettings(database_url=url, port=given.port, demo=True))
        print(
            f"A made-up history is on {listening.url}/\n"
            "  Nothing in it was measured. It is removed when the server stops.\n"
            "Ctrl-C stops it.",
            flush=True,
        )
        run(listening)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
    except ZeusrunError as error:
        sys.exit(str(error))
