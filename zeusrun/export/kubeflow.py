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
        names = ("URL", "CA_CERT", "TOKEN")
        self._given = {name: environment.get(_VARIABLE + name, "") for name in names}
        self._starts: tuple[Trial, Usual] | None = None
        self._status: dict[str, Any] | None = None  # the newest that was not sent
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zeusrun-kubeflow", daemon=True)

    def __enter__(self) -> Self:
        if all(self._given.values()):
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
                self._starts = trial, usual
                self._status = build_status(trial, None, UNKNOWN)
            case Advanced(progress) if self._starts is not None:
                self._status = build_status(self._starts[0], progress, self._starts[1])
            case TrialEnded(trial, _):
                self._status = build_status(trial, None, UNKNOWN)

    def _run(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            self._send()
        self._send()

    def _send(self) -> None:
        status, self._status = self._status, None
        if status is None:
            return
        with contextlib.suppress(Exception):  # any error: the next one may arrive
            # It is renewed from time to time.
            token = Path(self._given["TOKEN"]).read_text(encoding="utf-8").strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            content = json.dumps({"trainerStatus": status}).encode()
            request = urllib.request.Request(self._given["URL"], content, headers)  # noqa: S310 - Kubeflow's own
            trusted = ssl.create_default_context(cafile=self._given["CA_CERT"])
            urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=trusted).close()  # noqa: S310 - as above


def build_status(trial: Trial, progress: Progress | None, usual: Usual) -> dict[str, Any]:
    """Return the ``trainerStatus`` of a trial; ``progress`` is ``None`` if it does not run."""
    done = trial.status is TrialStatus.REACHED
    left = None if progress is None else estimate_remaining(trial, progress, usual)
    percentage = 100 if done else None
    if progress is not None and left is not None:
        percentage = min(99, int(100 * progress.epochs / left.goal))
    seen = trial if progress is None else progress
    metrics = {
        trial.metric: trial.best_metric if progress is None else progress.last_value,
        "batch_size": float(trial.last_batch_size),
        "epochs": seen.epochs,
        "energy_j": seen.energy_j,
        "cost_j": seen.cost_j,
    }
    known = {
        "progressPercentage": percentage,
        "estimatedRemainingSeconds": 0 if done else left and min(_MAX_S, math.ceil(left.seconds)),
    }
    return {
        **{name: value for name, value in known.items() if value is not None},
        "metrics": [
            {"name": name[:_MAX_TEXT], "value": f"{value:.6g}"}
            for name, value in metrics.items()
            if value is not None
        ],
        "lastUpdatedTime": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
