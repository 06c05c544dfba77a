"""A ``power.csv`` that anyone can read, that stays bounded and loses no joule."""

from __future__ import annotations

import csv
import itertools
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeusrun.energy.device import Health
from zeusrun.energy.power_csv import COLUMNS, PowerCsv, Row

WATTS = 250.0


def rows_of(path):
    with path.open(encoding="ascii", newline="") as file:
        return list(csv.DictReader(file))


def write(csv_file, ticks, uuids=("A", "B"), first=0, period_s=0.1):
    """Write ticks of devices that draw 250 W; yield the size of the folder after each."""
    folder = csv_file._path.parent
    for number in range(first, first + ticks):
        time_s = number * period_s
        csv_file.write([Row(time_s, uuid, WATTS, 300.0, time_s * WATTS) for uuid in uuids])
        yield sum(path.stat().st_size for path in folder.iterdir())


def times_s(rows, uuid="A"):
    return [float(row["time_s"]) for row in rows if row["uuid"] == uuid]


def test_a_row_tells_all_and_an_unknown_cell_is_empty(tmp_path):
    path = tmp_path / "power.csv"
    health = Health(0.98, 65.0, 1410.0, 1215.0, ("sw_power_cap", "hw_slowdown"))
    output = PowerCsv(path)
    output.write(
        [
            Row(0.5, "A", 123.4567, 300.0, 1234567.8914, health),
            Row(0.5, "B", None, None, None, Health(throttle_reasons=())),
            Row(0.5, "C", None, None, None, None),
        ]
    )
    assert path.read_text().splitlines() == [
        COLUMNS,
        "0.500,A,123.457,300.000,1234567.891,0.98,65,1410,1215,sw_power_cap+hw_slowdown",
        "0.500,B,,,,,,,,none",
        "0.500,C,,,,,,,,",
    ]


def test_a_file_that_is_full_is_thinned_and_written_on(tmp_path):
    path = tmp_path / "power.csv"
    output = PowerCsv(path, max_bytes=20_000)
    sizes = list(write(output, 5000))
    assert max(sizes) <= 20_000 + 100
    assert [entry.name for entry in tmp_path.iterdir()] == ["power.csv"]
    rows = rows_of(path)
    assert path.read_text().startswith(COLUMNS)
    assert (rows[0]["time_s"], rows[-1]["time_s"]) == ("0.000", "499.900")
    assert float(rows[-1]["energy_j"]) == pytest.approx(499.9 * WATTS)


def test_older_samples_are_evenly_spread_and_the_latest_whole(tmp_path):
    path = tmp_path / "power.csv"
    list(write(PowerCsv(path, max_bytes=100_000), 50_000))
    seen_s = times_s(rows_of(path))
    gaps_s = [after - before for before, after in itertools.pairwise(seen_s)]
    older_s = gaps_s[: len(gaps_s) // 4]
    assert min(older_s) == pytest.approx(max(older_s))
    assert gaps_s[-50:] == pytest.approx([0.1] * 50)


def test_all_devices_keep_the_same_samples(tmp_path):
    path = tmp_path / "power.csv"
    list(write(PowerCsv(path, max_bytes=20_000), 5000, uuids=("A", "B", "C")))
    rows = rows_of(path)
    assert times_s(rows, "A") == times_s(rows, "B") == times_s(rows, "C")


def test_the_last_two_minutes_of_a_file_with_room_for_them_are_whole(tmp_path):
    path = tmp_path / "power.csv"
    output = PowerCsv(path, max_bytes=500_000)
    sizes = list(write(output, 8000))
    thinned_at = next(n for n, (a, b) in enumerate(itertools.pairwise(sizes)) if b < a) + 1
    since_s = thinned_at / 10 - 120
    recent_s = [time_s for time_s in times_s(rows_of(path)) if time_s >= since_s]
    assert len(recent_s) == 8000 - round(since_s * 10)


def test_whoever_has_the_file_open_goes_on_reading_what_they_opened(tmp_path):
    path = tmp_path / "power.csv"
    output = PowerCsv(path, max_bytes=5000)
    list(write(output, 20))
    with path.open() as reader:
        before = reader.readline()
        list(write(output, 500, first=20))
        assert before.strip() == COLUMNS
        assert len(reader.readlines()) >= 40


def test_a_device_that_drops_out_keeps_its_rows(tmp_path):
    path = tmp_path / "power.csv"
    output = PowerCsv(path, max_bytes=20_000)
    list(write(output, 100))
    list(write(output, 5000, uuids=("A",), first=100))
    assert len(times_s(rows_of(path), "B")) >= 1
    assert path.stat().st_size <= 20_000


def test_no_room_for_the_thinned_copy_ends_the_file_and_leaves_the_full_one(tmp_path):
    path = tmp_path / "power.csv"
    output = PowerCsv(path, max_bytes=5000)
    os.mkfifo(tmp_path / "power.csv.thinned")  # that nobody reads
    with pytest.raises(OSError, match="No such device"):
        list(write(output, 500))
    assert not (tmp_path / "power.csv.thinned").exists()
    assert len(rows_of(path)) > 50
    output.close()


def test_a_pipe_is_never_thinned(tmp_path):
    path = tmp_path / "power.csv"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    output = PowerCsv(path, max_bytes=100)
    list(write(output, 50))
    output.close()
    assert os.read(reader, 1 << 16).count(b"\n") == 101
    os.close(reader)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 30.0), st.sets(st.sampled_from("ABC"), min_size=1)),
        min_size=1,
        max_size=200,
    ),
    st.integers(100, 5000),
)
def test_thinning_keeps_first_and_last_and_never_runs_backwards(ticks, max_bytes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "power.csv"
        output = PowerCsv(path, max_bytes=max_bytes)
        time_s = 0.0
        seen = {}
        for step_s, uuids in ticks:
            time_s += step_s
            for uuid in uuids:
                seen.setdefault(uuid, []).append(f"{time_s:.3f}")
            output.write([Row(time_s, uuid, 1.0, None, time_s) for uuid in sorted(uuids)])
        output.close()
        rows = rows_of(path)
        for uuid, written in seen.items():
            kept = [row["time_s"] for row in rows if row["uuid"] == uuid]
            assert kept[0] == written[0]
            assert set(kept) <= set(written)
            energies_j = [float(row["energy_j"]) for row in rows if row["uuid"] == uuid]
            assert energies_j == sorted(energies_j)
        assert rows[-1]["time_s"] == f"{time_s:.3f}"
