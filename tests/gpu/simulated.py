"""A device that exists only in memory: its power follows from a demand, a limit and a clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.energy.device import Health, Reading, check_power_limit
from zeusrun.errors import DeviceError, LimitRefusedError
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Callable


class SimulatedDevice:
    """A GPU that draws what its work demands, up to its limit, and can be told to misbehave.

    Deterministic: everything follows from the clock and the calls made.
    """

    is_gpu = True

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        uuid: str = "SIM-0",
        model: str = "Simulated GPU",
        demand_w: float = 200.0,
        power_limit_range_w: tuple[float, float] = (100.0, 300.0),
        has_counter: bool = True,
        has_power: bool = True,
        caveat: str | None = None,
    ) -> None:
        """Switch it on, at its highest limit.

        Args:
            clock: Monotonic seconds.
            uuid: Its name.
            model: Its product name.
            demand_w: What it would draw without a limit.
            power_limit_range_w: The lowest and the highest limit.
            has_counter: Whether it counts energy.
            has_power: Whether it tells its momentary power.
            caveat: See ``Device.caveat``.
        """
        self.uuid = uuid
        self.model = model
        self.max_power_w = power_limit_range_w[1]
        self.energy_source = EnergySource.COUNTER if has_counter else EnergySource.INTEGRATED
        self.caveat = caveat
        self._clock = clock
        self._demand_w = demand_w
        self._range_w = power_limit_range_w
        self._limit_w = power_limit_range_w[1]
        self._has_counter = has_counter
        self._has_power = has_power
        self._settled_s = clock()
        self._used_j = 0.0
        self._counter_origin_j = 0.0
        self._frozen_counter_j: float | None = None
        self._failure: str | None = None
        self._limits_refused = False
        self._processes: frozenset[int] | None = frozenset()

    def read(self) -> Reading:
        """See ``Device.read``."""
        self._answer()
        self._settle()
        counter_j = self._frozen_counter_j
        if counter_j is None:
            counter_j = self._used_j - self._counter_origin_j
        return Reading(
            energy_j=counter_j if self._has_counter else None,
            power_w=self._power_w() if self._has_power else None,
            power_limit_w=self._limit_w,
            health=Health(
                utilization=1.0 if self._demand_w else 0.0,
                throttle_reasons=("sw_power_cap",) if self._limit_w < self._demand_w else (),
            ),
        )

    def compute_processes(self) -> frozenset[int] | None:
        """See ``Device.compute_processes``."""
        self._answer()
        return self._processes

    def close(self) -> None:
        """See ``Device.close``; nothing is held."""

    def power_limit_range_w(self) -> tuple[float, float]:
        """See ``LimitableDevice.power_limit_range_w``."""
        self._answer()
        return self._range_w

    def power_limit_w(self) -> float:
        """See ``LimitableDevice.power_limit_w``."""
        self._answer()
        return self._limit_w

    def set_power_limit_w(self, watts: float) -> None:
        """See ``LimitableDevice.set_power_limit_w``."""
        self._answer()
        check_power_limit(f"{self.model} ({self.uuid})", watts, self._range_w)
        if self._limits_refused:
            raise LimitRefusedError(f"{self.model} ({self.uuid}) was told to refuse power limits")
        self._settle()
        self._limit_w = watts

    def demand(self, watts: float) -> None:
        """Let its work demand this much from now on."""
        self._settle()
        self._demand_w = watts

    def compute(self, processes: frozenset[int] | None) -> None:
        """List these processes from now on; ``None``: tell of none."""
        self._processes = processes

    def stand_still(self) -> None:
        """Freeze the counter at its value of now, while power is drawn on."""
        self._frozen_counter_j = self.read().energy_j

    def restart_counter(self) -> None:
        """Let the counter begin at zero again, as a restarted driver does."""
        self._settle()
        self._counter_origin_j = self._used_j

    def refuse_limits(self) -> None:
        """Refuse every limit from now on, as for a user without permission."""
        self._limits_refused = True

    def fail(self, reason: str) -> None:
        """Answer nothing from now on but a ``DeviceError`` with this reason."""
        self._failure = reason

    def _power_w(self) -> float:
        return min(self._demand_w, self._limit_w)

    def _settle(self) -> None:
        now_s = self._clock()
        self._used_j += self._power_w() * (now_s - self._settled_s)
        self._settled_s = now_s

    def _answer(self) -> None:
        if self._failure is not None:
            raise DeviceError(f"{self.model} ({self.uuid}): {self._failure}")
