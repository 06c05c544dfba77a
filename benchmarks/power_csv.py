"""How large ``power.csv`` becomes over a long run, and for how long thinning it holds one up.

Target: 30 days of 8 devices at 10 Hz in at most 50 MB at every moment, temporary file included.
``python benchmarks/power_csv.py [--days 30] [--devices 8]`` takes about 15 minutes: every one of
the 207 million rows goes through the writer. The clock is made up, so it goes as fast as it can.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

from timing import describe_machine

from zeusrun.energy.device import Health
from zeusrun.energy.power_csv import PowerCsv, Row

WATTS = 250.0
HEALTH = Health(0.98, 65.0, 1410.0, 1215.0, ("sw_power_cap",))


class WatchedCsv(PowerCsv):
    """Notes each thinning: how long it took, and how large both files were together."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.thinnings: list[tuple[float, int]] = []

    def _thin(self) -> None:
        before = self._path.stat().st_size
        began = time.perf_counter()
        super()._thin()
        took_s = time.perf_counter() - began
        # Until it takes the full one's place, the thinned file lies beside it.
        self.thinnings.append((took_s, before + self._path.stat().st_size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--devices", type=int, default=8)
    arguments = parser.parse_args()
    uuids = [f"GPU-{n:08x}-1111-2222-3333-444455556666" for n in range(arguments.devices)]
    ticks = round(arguments.days * 864_000)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "power.csv"
        output = WatchedCsv(path)
        for tick in range(ticks):
            time_s = tick / 10
            energy_j = time_s * WATTS
            output.write([Row(time_s, uuid, WATTS, 300.0, energy_j, HEALTH) for uuid in uuids])
        output.close()
        took_s = time.perf_counter() - began
        lines = path.read_text(encoding="ascii").splitlines()[1:]
        final_bytes = path.stat().st_size
    rows = [line.split(",") for line in lines]
    times_s = [float(row[0]) for row in rows if row[1] == uuids[0]]
    gaps_s = [after - before for before, after in itertools.pairwise(times_s)]
    energy_j = float(rows[-1][4]) - float(rows[0][4])
    print(describe_machine())
    print(f"{arguments.days:g} days of {len(uuids)} devices, {ticks * len(uuids):,} rows written")
    print(f"written in          {took_s:.0f} s, {took_s / ticks * 1e6:.1f} us per sample of all")
    print(f"final size          {final_bytes / 1e6:.1f} MB, {len(rows):,} rows")
    if output.thinnings:
        holds_s, sizes = zip(*output.thinnings, strict=True)
        print(f"largest size        {max(sizes) / 1e6:.1f} MB, temporary file included")
        print(
            f"thinned             {len(holds_s)} times, {statistics.median(holds_s):.3f} s "
            f"({min(holds_s):.3f} to {max(holds_s):.3f}; 99 % within "
            f"{sorted(holds_s)[int(0.99 * (len(holds_s) - 1))]:.3f})"
        )
    print(f"between samples     {gaps_s[0]:.1f} s at the start, {gaps_s[-1]:.1f} s at the end")
    print(f"whole at the end    the last {whole_s(times_s, gaps_s) / 60:.1f} minutes")
    print(f"energy of a device  {energy_j:.0f} J; written {(ticks - 1) / 10 * WATTS:.0f} J")


def whole_s(times_s: list[float], gaps_s: list[float]) -> float:
    """Return how far back from the end no sample is missing."""
    thinned = [index for index, gap_s in enumerate(gaps_s) if gap_s > 0.15]
    return times_s[-1] - (times_s[thinned[-1] + 1] if thinned else times_s[0])


if __name__ == "__main__":
    main()
