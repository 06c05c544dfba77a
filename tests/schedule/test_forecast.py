"""When a submit would have its GPUs, by what those before it still need."""

from __future__ import annotations

import pytest

from zeusrun.launcher.queue.admission import GpuWish
from zeusrun.launcher.queue.tickets import Ticket
from zeusrun.schedule.deferral import forecast_free

HOLDS = Ticket(1, "other", 1, "running", "then", ("A",), holds=True)
WAITS = Ticket(2, "third", 2, "waiting", "then", ("A", "B"))
MINE = Ticket(3, "mine", 3, "running", "then", ("B",), holds=True)
LEFT = {1: 60.0, 2: 100.0, 3: 1000.0}


@pytest.mark.parametrize(
    ("wish", "present", "free_s"),
    [
        (GpuWish(("A",)), [], 0),
        (GpuWish(("A",)), [HOLDS], 60),
        (GpuWish(("B",)), [HOLDS], 0),
        (GpuWish(("A",)), [WAITS, HOLDS], 160),
        (GpuWish(("B",)), [HOLDS, WAITS], 160),
        (GpuWish(("A", "B"), 1), [HOLDS], 0),
        (GpuWish(("A", "B"), 2), [HOLDS], 60),
        (GpuWish(("B",)), [MINE], 0),  # submits of one job share the GPUs that they name
        (GpuWish(("B",), 1), [MINE], 1000),
        (GpuWish(), [HOLDS, WAITS], 0),
    ],
)
def test_gpus_are_free_when_those_before_are_done(wish, present, free_s):
    assert forecast_free(wish, "mine", present, LEFT, 5000.0) == 5000.0 + free_s


def test_what_is_unknown_takes_no_time():
    assert forecast_free(GpuWish(("A",)), "mine", [HOLDS, WAITS], {2: 7.0}, 5000.0) == 5007.0
