"""The thread that samples a job's devices, and its answers about their energy."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from zeusrun.energy.device_energy import LOST_S, Accounts, EnergyTrack
from zeusrun.energy.meter import Meter
from zeusrun.energy.power_csv import PowerCsv, Row
from zeusrun.energy.series import LimitSeries
from zeusrun.energy.sharing import Sharing
from zeusrun.errors import DeviceError
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from zeusrun.energy.device import Device
    from zeusrun.energy.foreign import ForeignProcesses

# A driver call that hangs must not keep zeusrun from recording the trial. At the end, wait at most
# this long for each single answer.
_JOIN_TIMEOUT_S = 10.0
_WEAKEST_FIRST = (EnergySource.ESTIMATED, EnergySource.INTEGRATED, EnergySource.COUNTER)


class EnergyMonitor(Meter):
    """Samples devices from a daemon thread while the ``with`` block runs.

    If metering fails, training continues: the energy becomes ``None`` and a warning says why. An
    exception that no device caused is a bug. It is raised again on leaving the block, unless
    another exception leaves the block. The caller opens and closes the devices.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        csv_path: Path | None,
        period_s: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        foreign: ForeignProcesses | None = None,
    ) -> None:
        """Prepare; nothing is read, written or started yet.

        Args:
            devices: All devices of the job.
            csv_path: Where to write ``power.csv``; ``None`` for no file.
            period_s: Seconds between samples.
            clock: Monotonic seconds; windows are given on the same clock.
            foreign: Finds processes of others on the GPUs; ``None`` to check nothing.

        Raises:
            ValueError: If the period is not positive.
        """
        if not period_s > 0:
            raise ValueError(f"the period is {period_s} s; it must be positive")
        self._warnings: list[str] = []
        self._devices = tuple(devices)
        self._names = [f"{device.model} ({device.uuid})" for device in self._devices]
        self._tracks = [
            EnergyTrack(name, device.energy_source, device.max_power_w if device.is_gpu else None)
            for name, device in zip(self._names, self._devices, strict=True)
        ]
        self._limits = LimitSeries()
        self._sharing = Sharing(self._devices, self._names, foreign)
        self._csv_path = csv_path
        self._csv: PowerCsv | None = None
        self._period_s = period_s
        self._clock = clock
        self._started_s = 0.0
        self._stop = threading.Event()
        self._lock = threading.Lock()  # over the tracks: the thread writes, the main thread reads
        self._asked: str | None = None  # the device that is being read now
        self._answers = 0
        self._bug: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="zeusrun-energy", daemon=True)

    def __enter__(self) -> Self:
        self._started_s = self._clock()
        caveats = [device.caveat for device in self._devices]
        self._warnings.extend(dict.fromkeys(caveat for caveat in caveats if caveat is not None))
        if self._csv_path is not None:
            try:
                self._csv = PowerCsv(self._csv_path)
            except OSError as error:
                self._warn_csv(error)
        # The first sample is taken here, so that no window can start before it.
        self._sample_or_give_up()
        self._thread.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._join()
        self._judge()
        if self._bug is not None and exception is None:
            raise self._bug

    def sample(self) -> None:
        """Read every device now. The thread calls it; without the thread (in tests), call it."""
        rows: list[Row] = []
        limits_w: list[float | None] = [None] * len(self._devices)
        found: list[tuple[str, str]] = []
        for place, (name, device, track) in enumerate(
            zip(self._names, self._devices, self._tracks, strict=True)
        ):
            if track.failed:
                continue
            time_s = self._clock()
            self._asked = name
            try:
                reading = device.read()
            except DeviceError as error:
                with self._lock:
                    found += [(name, text) for text in track.miss(time_s, str(error))]
                continue
            finally:
                self._asked = None
                self._answers += 1
            limits_w[place] = reading.power_limit_w
            with self._lock:
                found += [(name, text) for text in track.add(time_s, reading)]
                power_w, cumulative_j = track.power_w(), track.cumulative_j
            if self._csv is not None:
                rows.append(
                    Row(
                        time_s - self._started_s,
                        device.uuid,
                        power_w,
                        reading.power_limit_w,
                        cumulative_j,
                        reading.health,
                    )
                )
        with self._lock:
            self._limits.add(self._clock(), limits_w)
            self._warnings += _merged(found)
        self._write(rows)
        warning = self._sharing.check(self._clock())
        if warning is not None:
            self._warnings.append(warning)

    def energy_between(self, since_s: float, until_s: float) -> float | None:
        """Return the joules that all devices used between two moments of the monitor's clock.

        Returns:
            Joules, interpolated between samples; ``None`` if there are no devices, if any was not
            measured over the window, or if any failed at any time.

        Raises:
            ValueError: If the window ends before it starts.
        """
        with self._lock:
            return _sum([track.energy_j(since_s, until_s) for track in self._tracks])

    energy_j = energy_between  # the name that the supervisor still uses

    def device_energies_j(self, since_s: float, until_s: float) -> dict[str, float | None]:
        """Return the joules of a window by the uuid of each device; see ``energy_between``."""
        with self._lock:
            return {
                device.uuid: track.energy_j(since_s, until_s)
                for device, track in zip(self._devices, self._tracks, strict=True)
            }

    def accounts_j(self, since_s: float, until_s: float) -> Accounts:
        """Return the joules of a window by counters and by sampled power, over all devices.

        Returns:
            Each ``None`` where any device lacks it. ``energy_between`` uses the trusted account of
            each device.

        Raises:
            ValueError: If the window ends before it starts.
        """
        with self._lock:
            found = [track.accounts_j(since_s, until_s) for track in self._tracks]
        return Accounts(
            _sum([accounts.counter_j for accounts in found]),
            _sum([accounts.integrated_j for accounts in found]),
        )

    def limit_w(self, since_s: float, until_s: float) -> float | None:
        """Return the power limit that was in force for most of a window; see ``LimitSeries``."""
        with self._lock:
            return self._limits.longest_w(since_s, until_s)

    def power_w(self) -> float | None:
        """Return the latest draw of all devices in watts.

        Returns:
            Watts; ``None`` if unknown for any, or if any was last read more than 5 s ago.
        """
        with self._lock:
            stale_s = self._clock() - LOST_S
            return _sum(
                [
                    None if track.last_s is None or track.last_s < stale_s else track.power_w()
                    for track in self._tracks
                ]
            )

    @property
    def energy_source(self) -> EnergySource | None:
        """The weakest source among the devices; ``None`` if any has none."""
        with self._lock:
            sources = {track.source for track in self._tracks}
        if None in sources:
            return None
        return next((source for source in _WEAKEST_FIRST if source in sources), None)

    @property
    def max_power_w(self) -> float | None:
        """The most that all devices together may draw, in watts; ``None`` if unknown for any."""
        return _sum([device.max_power_w for device in self._devices])

    @property
    def shared(self) -> bool | None:
        """Whether processes of others computed on any GPU meanwhile; ``None`` if unknown."""
        return self._sharing.shared

    @property
    def warnings(self) -> list[str]:
        """Sentences for the user, oldest first."""
        return self._warnings

    def _run(self) -> None:
        due_s = self._clock() + self._period_s
        while not self._stop.wait(max(0.0, due_s - self._clock())):
            self._sample_or_give_up()
            due_s = max(due_s + self._period_s, self._clock())
        if self._bug is None:
            self._sample_or_give_up()  # so that no window can end long after the last sample
        if self._csv is not None:
            self._csv.close()

    def _join(self) -> None:
        """Wait for the thread's last sample, but not for a hanging device."""
        while self._thread.is_alive():
            progress = self._answers, self._sharing.asked
            self._thread.join(_JOIN_TIMEOUT_S)
            if self._thread.is_alive() and progress == (self._answers, self._sharing.asked):
                asked = self._asked or self._sharing.asked or "the metering thread"
                self._give_up(f"{asked} has not answered for {_JOIN_TIMEOUT_S:g} s")
                return

    def _sample_or_give_up(self) -> None:
        try:
            self.sample()
        except Exception as error:  # noqa: BLE001 - kept, and raised again by __exit__
            self._bug = error
            self._stop.set()
            self._give_up(f"{type(error).__name__}: {error}")

    def _judge(self) -> None:
        """Warn, at the end, of devices that are missing and of accounts that disagree."""
        with self._lock:
            named = list(zip(self._names, self._tracks, strict=True))
            self._warnings += _merged(
                [(name, text) for name, track in named for text in track.end()]
            )
            for track in self._tracks:
                doubt = track.disagreement(self._started_s, self._clock())
                if doubt is not None:
                    self._warnings.append(doubt)

    def _give_up(self, why: str) -> None:
        with self._lock:
            for track in self._tracks:
                track.fail()
        self._warnings.append(f"metering stopped, so the energy of this run is unknown: {why}")

    def _write(self, rows: Sequence[Row]) -> None:
        if self._csv is None:
            return
        try:
            self._csv.write(rows)
        except OSError as error:
            self._csv = None
            self._warn_csv(error)

    def _warn_csv(self, error: OSError) -> None:
        self._warnings.append(
            f"{self._csv_path} is incomplete ({error.strerror or error}); energy is still measured"
        )


def _merged(found: Sequence[tuple[str, str]]) -> list[str]:
    """Return the warnings; one that several devices share appears once."""
    names_of: dict[str, list[str]] = {}
    for name, text in found:
        names_of.setdefault(text.replace(name, "\0"), []).append(name)
    return [
        text.replace("\0", names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more")
        for text, names in names_of.items()
    ]


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
