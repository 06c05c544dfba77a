"""Trials of which a report is made."""

from __future__ import annotations

import sys

from tests.factories import build_trial
from zeusrun.trial import CurvePoint, EnergySource, TrialStatus
from zeusrun.trial.values import NoisePoint, WorldChange

KWH = 3.6e6


def close_fonts():
    """Close the files of the fonts in which something was drawn: matplotlib keeps some open."""
    if "matplotlib.font_manager" in sys.modules:
        sys.modules["matplotlib.font_manager"]._get_font.cache_clear()


def run(recurrence, size, energy_kwh=1.0, attempt=1, status=TrialStatus.REACHED, **changes):
    """Return a finished run of job ``job`` with default 32; its cost is its energy."""
    energy_j = None if energy_kwh is None else energy_kwh * KWH
    values = {
        "status": status,
        "global_batch_size": size,
        "started_at": f"2026-03-{recurrence % 28 + 1:02d}T12:00:00+00:00",
        "energy_j": energy_j,
        "energy_source": EnergySource.COUNTER,
        "cost_j": energy_j,
        "time_s": 600.0,
        "max_power_w": 700.0,
        "gpu_model": "GPU",
        "gpu_count": 1,
        "epochs": 3,
        "steps": 3200 // size,
        "whole_steps": 3200 // size,
        "eta_knob": 1.0,
        "startup_s": 20.0,
        "curve": tuple(
            CurvePoint(n, 200.0 * n, (energy_j or 0.0) * n / 3, 0.2 * n) for n in range(1, 4)
        ),
    }
    return build_trial(recurrence, attempt, **{**values, **changes})


def run_by_samples(recurrence, size, samples=250_000, **changes):
    """Return a run that reported five times in its only epoch, and reached 0.5 at the fourth."""
    values = (0.1, 0.2, 0.4, 0.6, 0.7)
    curve = tuple(
        CurvePoint(samples * n // 5, 50.0 * n, 1e5 * n, value) for n, value in enumerate(values, 1)
    )
    whole = (curve[-1]._replace(epoch=1),)
    more = {"curve": whole, "epochs": 1, "samples": samples * 4 // 5, "by_samples": curve}
    more |= {"whole_epochs": 1, "whole_samples": samples}
    return run(recurrence, size, **{**more, **changes})


def noise_curve(scale=40.0, epochs=6, known=4, data=1000):
    """Return a noise scale that doubles in each epoch; later it is only known to be at least so."""
    points = []
    for n in range(1, epochs + 1):
        now = scale * 2**n
        value, high = (now, now * 1.5) if n <= known else (None, None)
        points.append(NoisePoint(n * data - data // 4, n - 0.25, now * 0.7, value, high))
    return tuple(points)


def resized(recurrence=1, size=32, steps=300, **changes):
    """Return a run that grew from one rank to two, and lost one; two others did not change."""
    ranks = (
        WorldChange(0.0, 0, 1, 2.0, None, 0),
        WorldChange(10.0, 1, 2, 2.9, 0.065, 100),
        WorldChange(20.0, 2, 1, 0.05, 0.11, 250),
    )
    whole = {"whole_steps": steps, "whole_time_s": 30.0, "world_sizes": ranks}
    return run(recurrence, size, **{**whole, **changes})
