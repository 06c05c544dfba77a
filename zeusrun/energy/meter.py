"""The protocol of a meter: what a running trial asks about the energy of its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from zeusrun.energy.device_energy import Accounts
    from zeusrun.trial import EnergySource


class Meter(Protocol):
    """Measures the energy of a job from entering the ``with`` block until leaving it.

    Times are those of ``time.monotonic`` on the launcher's machine; a window that ends before it
    starts is a ``ValueError``. What is unknown is ``None``, never 0. If a meter fails, the training
    continues: energy becomes ``None`` and a warning says why. Methods also work after the block.
    """

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, exception: object, traceback: object) -> None: ...

    def energy_between(self, since_s: float, until_s: float) -> float | None:
        """Return the joules that all devices used; ``None`` if any was not always measured."""

    def accounts_j(self, since_s: float, until_s: float) -> Accounts:
        """Return the joules of a window by counters and by sampled power."""

    def host_energies_j(self, since_s: float, until_s: float) -> dict[str, float | None]:
        """Return the joules of a window by host; the name of this host is empty."""

    def limit_w(self, since_s: float, until_s: float) -> float | None:
        """Return the power limit per GPU in force for most of a window; the lowest of all GPUs."""

    def power_w(self) -> float | None:
        """Return the watts that all devices draw now; ``None`` if unknown for any."""

    @property
    def energy_source(self) -> EnergySource | None:
        """The weakest source among the devices; ``None`` if any has none."""

    @property
    def max_power_w(self) -> float | None:
        """The most that all devices together may draw, in watts; ``None`` if unknown for any."""

    @property
    def shared(self) -> bool | None:
        """Whether processes of others computed on the GPUs meanwhile; ``None`` if unknown."""

    @property
    def warnings(self) -> Sequence[str]:
        """Sentences for the user, oldest first."""
