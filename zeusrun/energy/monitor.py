"""The thread that samples a job's devices, and its answers about their energy."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.device import Health, name_of
from zeusrun.energy.device_energy import LOST_S, Accounts, EnergyTrack
from zeusrun.energy.meter import Meter
from zeusrun.energy.sharing import Sharing
from zeusrun.errors import DeviceError
from zeusrun.files.private import open_for_writing
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from typing_extensions import Self

    from zeusrun.energy.device import Device
    from zeusrun.energy.sharing import ForeignProcesses


_JOIN_TIMEOUT_S = 20.0  # a driver call that hangs must not keep zeusrun from recording the trial
_WEAKEST_FIRST = (EnergySource.ESTIMATED, EnergySource.INTEGRATED, EnergySource.COUNTER)


class EnergyMonitor(Meter):
    """Samples devices from a daemon thread while the ``with`` block runs.

    An exception that no device caused is a bug. It is raised again on leaving the block, unless
    another exception leaves the block. The caller opens and closes the devices.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        csv_path: Path | None,
        period_s: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        foreign: ForeignProcesses | None = None,
        *,
        others: Callable[[], bool | None] = lambda: None,
    ) -> None:
        """Prepare; without ``csv_path``, write no file.

        ``foreign`` finds processes that share the GPUs; ``others`` returns whether programs share
        other devices. Without both, sharing is unknown.
        """
        self._warnings: list[str] = []
        self._metered: list[tuple[Device, EnergyTrack]] = []
        for device in devices:
            # That of a CPU with counters may be a guess.
            nominal = not device.is_gpu and device.energy_source is not EnergySource.ESTIMATED
            max_power_w = None if nominal else device.max_power_w
            track = EnergyTrack(name_of(device), device.energy_source, max_power_w)
            self._metered.append((device, track))
        self._limits = LimitSeries()
        checks_gpus = foreign is not None and any(device.is_gpu for device in devices)
        self._sharing = Sharing(foreign) if foreign is not None and checks_gpus else None
        self._others = others
        self._csv = PowerCsv(csv_path)
        self._period_s = period_s
        self._clock = clock
        self._started_s = 0.0
        self._stop = threading.Event()
        self._lock = threading.Lock()  # over the tracks: the thread writes, the main thread reads
        self._asked: str | None = None  # the device that is being read now
        self._bug: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="zeusrun-energy", daemon=True)

    def __enter__(self) -> Self:
        self._started_s = self._clock()
        caveats = [device.caveat for device, _ in self._metered]
        self._warnings.extend(dict.fromkeys(caveat for caveat in caveats if caveat is not None))
        # The first sample is taken here, so that no window can start before it.
        self._sample_or_give_up()
        self._thread.start()
        return self

    def __exit__(self, kind: object, exception: object, traceback: object) -> None:
        self._stop.set()
        self._thread.join(_JOIN_TIMEOUT_S)
        if self._thread.is_alive():
            asked = self._asked or "the metering thread"
            self._give_up(f"{asked} has not answered for {_JOIN_TIMEOUT_S:g} s")
        self._judge()
        if self._bug is not None and exception is None:
            raise self._bug

    def sample(self) -> None:
        """Read every device now. The thread calls it; without the thread (in tests), call it."""
        rows: list[PowerRow] = []
        limits_w: list[float | None] = [None] * len(self._metered)
        found: list[tuple[str, str]] = []
        for place, (device, track) in enumerate(self._metered):
            if track.failed:
                continue
            time_s = self._clock()
            self._asked = track.name
            try:
                reading = device.read()
            except DeviceError as error:
                with self._lock:
                    found += [(track.name, text) for text in track.miss(time_s, str(error))]
                continue
            limits_w[place] = reading.power_limit_w
            if reading.t is not None:
                time_s = max(reading.t, self._started_s)
                if track.last_s is not None and time_s <= track.last_s:
                    continue  # it is the last one again
            with self._lock:
                found += [(track.name, text) for text in track.add(time_s, reading)]
                power_w, cumulative_j = track.power_w(), track.cumulative_j
            run_s, limit_w = time_s - self._started_s, reading.power_limit_w
            row = PowerRow(run_s, device.uuid, power_w, limit_w, cumulative_j, reading.health)
            rows.append(row)
        self._asked = None
        with self._lock:
            self._limits.add(self._clock(), limits_w)
            self._warnings += _merged(found)
        self._warn(self._csv.write(rows))
        if self._sharing is not None:
            self._warn(self._sharing.look(self._each_device(), self._clock()))

    def energy_between(self, since_s: float, until_s: float) -> float | None:
        """See ``Meter``. Energy is interpolated between samples."""
        with self._lock:
            return _sum([track.energy_j(since_s, until_s) for _, track in self._metered])

    def host_energies_j(self, since_s: float, until_s: float) -> dict[str, float | None]:
        """See ``Meter``."""
        found: dict[str, list[float | None]] = {}
        with self._lock:
            for device, track in self._metered:
                parts = found.setdefault(getattr(device, "host", ""), [])
                parts.append(track.energy_j(since_s, until_s))
        return {host: _sum(parts) for host, parts in found.items()}

    def accounts_j(self, since_s: float, until_s: float) -> Accounts:
        """See ``Meter``. Each account is ``None`` if any device lacks it."""
        with self._lock:
            found = [track.accounts_j(since_s, until_s) for _, track in self._metered]
        return Accounts(
            _sum([accounts.counter_j for accounts in found]),
            _sum([accounts.integrated_j for accounts in found]),
        )

    def limit_w(self, since_s: float, until_s: float) -> float | None:
        """See ``Meter``."""
        with self._lock:
            return self._limits.longest_w(since_s, until_s)

    def power_w(self) -> float | None:
        """See ``Meter``. It is also unknown if any device was last read more than 5 s ago."""
        with self._lock:
            stale_s = self._clock() - LOST_S
            tracks = [track for _, track in self._metered]
            fresh = all(track.last_s is not None and track.last_s >= stale_s for track in tracks)
            return _sum([track.power_w() for track in tracks]) if fresh else None

    @property
    def energy_source(self) -> EnergySource | None:
        """See ``Meter``."""
        with self._lock:
            sources = {track.source for _, track in self._metered}
        if None in sources:
            return None
        return next((source for source in _WEAKEST_FIRST if source in sources), None)

    @property
    def max_power_w(self) -> float | None:
        """See ``Meter``."""
        return _sum([device.max_power_w for device, _ in self._metered])

    @property
    def shared(self) -> bool | None:
        """See ``Meter``."""
        return self._others() if self._sharing is None else self._sharing.shared

    @property
    def warnings(self) -> list[str]:
        """See ``Meter``."""
        return self._warnings

    def _run(self) -> None:
        due_s = self._clock() + self._period_s
        while not self._stop.wait(max(0.0, due_s - self._clock())):
            self._sample_or_give_up()
            due_s = max(due_s + self._period_s, self._clock())
        if self._bug is None:
            self._sample_or_give_up()  # so that no window can end long after the last sample
        self._csv.close()

    def _sample_or_give_up(self) -> None:
        try:
            self.sample()
        except BaseException as error:  # noqa: BLE001 - kept, and raised again by __exit__
            self._bug = error
            self._stop.set()
            self._give_up(f"{type(error).__name__}: {error}")

    def _each_device(self) -> Iterator[Device]:
        for device, track in self._metered:
            self._asked = track.name
            yield device
        self._asked = None

    def _judge(self) -> None:
        """Warn, at the end, of devices that are missing and of accounts that disagree."""
        with self._lock:
            self._warnings += _merged(
                [(track.name, text) for _, track in self._metered for text in track.end()]
            )
            for _, track in self._metered:
                self._warn(track.disagreement(self._started_s, self._clock()))

    def _give_up(self, why: str) -> None:
        with self._lock:
            for _, track in self._metered:
                track.failed = True
        self._warnings.append(f"metering stopped, so the energy of this run is unknown: {why}")

    def _warn(self, text: str | None) -> None:
        if text is not None:
            self._warnings.append(text)


class LimitSeries:
    """Power limit over time. Memory grows with the changes, not with the readings."""

    def __init__(self) -> None:
        self._changes: list[tuple[float, float | None]] = []
        self._last_s = 0.0

    def add(self, time_s: float, limits_w: Sequence[float | None]) -> None:
        """Add a later reading of all GPUs. The lowest counts: the slowest rank sets the speed."""
        self._last_s = time_s
        known = [limit_w for limit_w in limits_w if limit_w is not None]
        limit_w = min(known) if known and len(known) == len(limits_w) else None
        if not self._changes or self._changes[-1][1] != limit_w:
            self._changes.append((time_s, limit_w))

    def longest_w(self, since_s: float, until_s: float) -> float | None:
        """Return the watts per GPU that were in force for most of a window; ``None`` if unknown."""
        held_s: defaultdict[float | None, float] = defaultdict(float)
        ends = [*self._changes, (max(self._last_s, until_s), None)]
        for (from_s, limit_w), (to_s, _) in itertools.pairwise(ends):
            held_s[limit_w] += max(0.0, min(to_s, until_s) - max(from_s, since_s))
        longest_w = max(held_s, key=lambda limit_w: held_s[limit_w], default=None)
        return longest_w if held_s[longest_w] > 0 else None


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


COLUMNS = (
    "time_s,uuid,power_w,power_limit_w,energy_j,"
    "utilization,temperature_c,sm_clock_mhz,memory_clock_mhz,throttle_reasons"
)
# The file grows by about 100 bytes a row. With eight GPUs that is 30 MB in the first hour at 10 Hz,
# and 3 MB in each later hour at 1 Hz.
_DENSE_S = 3600.0


class PowerRow(NamedTuple):
    """One reading of one device, ``time_s`` after the run began; ``None`` is unknown."""

    time_s: float
    uuid: str
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None
    health: Health | None = None

    def to_line(self) -> str:
        """Return the line of the file, in the order of ``COLUMNS``."""
        *sensors, reasons = vars(self.health or Health()).values()
        cells = [
            f"{self.time_s:.3f}",
            self.uuid,
            *(_cell(each, ".3f") for each in (self.power_w, self.power_limit_w, self.energy_j)),
            *(_cell(each, "g") for each in sensors),
            "" if reasons is None else "+".join(reasons) or "none",  # NVML's own word
        ]
        return ",".join(cells) + "\n"


class PowerCsv:
    """Writer of ``power.csv``: every sample in the first hour, then the first one of each second.

    The joules are cumulative, so the samples that are left out lose no energy. Rows are flushed but
    not fsynced. After an error nothing more is written: metering matters more.
    """

    def __init__(self, path: Path | None) -> None:
        """Prepare; nothing is written yet, and never without a path."""
        self._path = path
        self._file: BinaryIO | None = None
        self._last_s = -1.0

    def write(self, rows: Sequence[PowerRow]) -> str | None:
        """Append one sample of all devices; return a warning if that failed, the first time."""
        if self._path is None or not rows:
            return None
        time_s = rows[0].time_s
        if time_s >= _DENSE_S and int(time_s) == int(self._last_s):
            return None
        self._last_s = time_s
        text = "".join([row.to_line() for row in rows])
        try:
            if self._file is None:
                descriptor = open_for_writing(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                self._file = os.fdopen(descriptor, "wb")
                text = f"{COLUMNS}\n{text}"
            self._file.write(text.encode("ascii", "replace"))
            self._file.flush()
        except OSError as error:
            path, self._path = self._path, None
            self.close()
            return f"{path} is incomplete ({error.strerror or error}); energy is still measured"
        return None

    def close(self) -> None:
        """Close the file. More than once is fine."""
        # Each write was flushed. After a failed write, close fails too; that is reported already.
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
