"""Reports a running training to Kubeflow Trainer, which shows it as ``status.trainerStatus``.

Only where it asks for that: it then sets three variables. An alpha feature of Kubeflow Trainer 2.2:
https://github.com/kubeflow/trainer/tree/master/proposals/2779-trainjob-progress
"""

from __future__ import annotations

import contextlib
import json
import math
import ssl
import threading
import urllib.request
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.analysis.usual import UNKNOWN, Usual
from zeusrun.launcher.events import Advanced, TrialEnded, TrialStarts
from zeusrun.launcher.remaining import estimate_remaining
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from zeusrun.launcher.events import SubmitEvent
    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import Trial

_VARIABLE = "KUBEFLOW_TRAINER_SERVER_"
_PERIOD_S = 5.0  # Kubeflow asks for no more
_TIMEOUT_S = 5.0
_MAX_TEXT = 64
_MAX_S = 2**31 - 1


class StatusReporter:
    """Sends the state of a submit every few seconds, in a thread. A context manager.

    Nothing that goes wrong here disturbs the training.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Prepare; nothing is sent yet."""
        self._given = [
            environment.get(_VARIABLE + name, "") for name in ("URL", "CA_CERT", "TOKEN")
        ]
        self._newest: tuple[Trial, Progress | None, Usual] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zeusrun-kubeflow", daemon=True)

    def __enter__(self) -> Self:
        if all(self._given):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(2 * _TIMEOUT_S)

    def take(self, event: SubmitEvent) -> None:
        """Note an event of the submit."""
        match event:
            case TrialStarts(trial, _, usual):
                self._newest = trial, None, usual
            case Advanced(progress) if self._newest is not None:
                trial, _, usual = self._newest
                self._newest = trial, progress, usual
            case TrialEnded(trial, _):
                self._newest = trial, None, UNKNOWN

    def _run(self) -> None:
        sent, has_ended = None, False
        while not has_ended:
            has_ended = self._ended.wait(_PERIOD_S)
            if (newest := self._newest) is not None and newest is not sent:
                sent = newest
                with contextlib.suppress(Exception):  # any error: the next one may arrive
                    self._send({"trainerStatus": build_status(*newest)})

    def _send(self, content: dict[str, Any]) -> None:
        url, authority, token = self._given
        bearer = Path(token).read_text(encoding="utf-8").strip()  # it is renewed now and then
        headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(content).encode(), headers)  # noqa: S310 - Kubeflow's own
        trusted = ssl.create_default_context(cafile=authority)
        urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=trusted).close()  # noqa: S310 - as above


def build_status(trial: Trial, progress: Progress | None, usual: Usual) -> dict[str, Any]:
    """Return the ``trainerStatus`` of a trial; ``progress`` is ``None`` if it does not run."""
    status: dict[str, Any] = {}
    value, energy_j = trial.best_metric, trial.energy_j
    seen = trial if progress is None else progress
    if progress is not None:
        value = progress.last_value
        parts = [progress.energy_j, *([] if trial.time_s is None else [trial.energy_j])]
        known = [each for each in parts if each is not None]  # of a run that was preempted: all
        energy_j = sum(known) if len(known) == len(parts) else None
        if (left := estimate_remaining(trial, progress, usual)) is not None:
            status["progressPercentage"] = min(99, int(100 * progress.epochs / left.goal))
            status["estimatedRemainingSeconds"] = min(_MAX_S, math.ceil(left.seconds))
    elif trial.status is TrialStatus.REACHED:
        status = {"progressPercentage": 100, "estimatedRemainingSeconds": 0}
    metrics = {trial.metric: value, "batch_size": trial.last_batch_size, "epochs": seen.epochs}
    metrics |= {"energy_j": energy_j, "cost_j": seen.cost_j}
    return {
        **status,
        "metrics": [
            {"name": name[:_MAX_TEXT], "value": f"{number:.6g}"}
            for name, number in metrics.items()
            if number is not None
        ],
        "lastUpdatedTime": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
