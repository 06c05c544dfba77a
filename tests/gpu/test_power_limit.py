"""Power limits are held, and found limits restored."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from zeusrun.errors import BusyError, DeviceError
from zeusrun.gpu.cpu import EstimatedCpu
from zeusrun.gpu.power_limit import hold_power_limit as hold_with_lock
from zeusrun.gpu.power_limit import restore_power_limits
from zeusrun.gpu.simulated import SimulatedDevice

FOUND_W = {"A": 300.0, "B": 212.345}


def hold_power_limit(devices, watts, record_path):
    locks = record_path.parent if record_path.parent.is_dir() else Path("/nonexistent")
    return hold_with_lock(devices, watts, record_path=record_path, lock_directory=locks)


@pytest.fixture
def devices(clock):
    devices = [SimulatedDevice(clock, uuid=uuid) for uuid in FOUND_W]
    devices[1].set_power_limit_w(FOUND_W["B"])
    return devices


@pytest.fixture
def record_path(tmp_path):
    return tmp_path / "power_limits.json"


def limits_w(devices):
    return {device.uuid: device.read().power_limit_w for device in devices}


def test_limits_are_held_and_then_restored_exactly(devices, record_path):
    with hold_power_limit(devices, 150.0, record_path):
        assert limits_w(devices) == {"A": 150.0, "B": 150.0}
    assert limits_w(devices) == FOUND_W
    assert not record_path.exists()


def test_the_limits_found_are_on_disk_before_the_first_change(devices, record_path):
    seen = []
    change = devices[0].set_power_limit_w

    def spy(watts):
        seen.append(json.loads(record_path.read_text(encoding="ascii"))["power_limit_w"])
        change(watts)

    devices[0].set_power_limit_w = spy
    with hold_power_limit(devices, 150.0, record_path):
        assert seen == [FOUND_W]


def test_limits_are_restored_when_the_block_raises(devices, record_path):
    with pytest.raises(KeyboardInterrupt), hold_power_limit(devices, 150.0, record_path):
        raise KeyboardInterrupt
    assert limits_w(devices) == FOUND_W
    assert not record_path.exists()


def test_limits_are_restored_though_the_record_was_deleted(devices, record_path):
    with hold_power_limit(devices, 150.0, record_path):
        record_path.unlink()
    assert limits_w(devices) == FOUND_W


def test_none_touches_neither_devices_nor_disk(clock, tmp_path):
    device = SimulatedDevice(clock)
    device.fail("must not be asked")
    with hold_power_limit([device], None, tmp_path / "absent" / "record.json"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_limit_out_of_range_changes_nothing(devices, record_path):
    with (
        pytest.raises(DeviceError, match="between 100 and 300 W"),
        hold_power_limit(devices, 301.0, record_path),
    ):
        pytest.fail("the block must not run")
    assert limits_w(devices) == FOUND_W
    assert not record_path.exists()


def test_a_refusal_by_the_second_device_restores_the_first(devices, record_path):
    devices[1].refuse_limits()
    with (
        pytest.raises(DeviceError, match="refuse"),
        hold_power_limit(devices, 150.0, record_path),
    ):
        pytest.fail("the block must not run")
    assert limits_w(devices) == FOUND_W
    assert not record_path.exists()


def test_a_limit_that_is_right_already_needs_no_permission(devices, record_path):
    devices[0].refuse_limits()
    with hold_power_limit(devices, 300.0, record_path):
        assert limits_w(devices) == {"A": 300.0, "B": 300.0}
    assert limits_w(devices) == FOUND_W


def test_devices_without_a_limit_are_left_alone(devices, record_path):
    with hold_power_limit([EstimatedCpu("Fake CPU"), *devices], 150.0, record_path):
        assert limits_w(devices) == {"A": 150.0, "B": 150.0}


def test_a_limit_that_no_device_can_hold_is_an_error(record_path):
    with (
        pytest.raises(DeviceError, match="none of the job's 1 devices"),
        hold_power_limit([EstimatedCpu("Fake CPU")], 150.0, record_path),
    ):
        pytest.fail("the block must not run")


def test_a_record_that_cannot_be_written_leaves_the_limits(devices):
    with (
        pytest.raises(DeviceError, match="no power limit is set"),
        hold_power_limit(devices, 150.0, Path("/dev/null/record.json")),
    ):
        pytest.fail("the block must not run")
    assert limits_w(devices) == FOUND_W


def test_an_older_record_is_not_overwritten(devices, record_path):
    record_path.write_text("the limits of a dead run", encoding="ascii")
    with (
        pytest.raises(DeviceError, match="restore them first"),
        hold_power_limit(devices, 150.0, record_path),
    ):
        pytest.fail("the block must not run")
    assert record_path.read_text(encoding="ascii") == "the limits of a dead run"
    assert limits_w(devices) == FOUND_W


def test_a_device_lost_while_held_keeps_the_record_and_the_others_are_restored(
    devices, record_path
):
    with (
        pytest.raises(DeviceError, match=r"B.*GPU is lost"),
        hold_power_limit(devices, 150.0, record_path),
    ):
        devices[1].fail("GPU is lost")
    assert devices[0].read().power_limit_w == FOUND_W["A"]
    assert json.loads(record_path.read_text(encoding="ascii"))["power_limit_w"] == FOUND_W


KILLED = """
import os, signal, sys, time
from pathlib import Path
from zeusrun.gpu.power_limit import hold_power_limit
from zeusrun.gpu.simulated import SimulatedDevice
devices = [SimulatedDevice(time.monotonic, uuid=uuid) for uuid in "AB"]
devices[1].set_power_limit_w(212.345)
record = Path(sys.argv[1])
with hold_power_limit(devices, 150.0, record_path=record, lock_directory=record.parent):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_record_of_a_killed_launcher_restores_what_it_found(clock, record_path):
    child = subprocess.run([sys.executable, "-c", KILLED, record_path], timeout=60, check=False)
    assert child.returncode == -9
    devices = [SimulatedDevice(clock, uuid=uuid) for uuid in "ABC"]
    for device in devices:
        device.set_power_limit_w(150.0)
    restore_power_limits(record_path, devices)
    assert limits_w(devices) == {**FOUND_W, "C": 150.0}
    assert not record_path.exists()


def test_without_a_record_there_is_nothing_to_restore(devices, record_path):
    restore_power_limits(record_path, devices)
    assert limits_w(devices) == FOUND_W


def test_a_device_of_the_record_that_is_absent_is_named_and_the_record_stays(devices, record_path):
    record = {"version": 1, "power_limit_w": {"A": 120.0, "GONE": 130.0}}
    record_path.write_text(json.dumps(record), encoding="ascii")
    with pytest.raises(DeviceError, match="GONE is not here"):
        restore_power_limits(record_path, devices)
    assert devices[0].read().power_limit_w == 120.0
    assert record_path.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 2, "power_limit_w": {}}',
        '{"version": 1}',
        '{"version": 1, "power_limit_w": 3}',
        '{"version": 1, "power_limit_w": {"A": null}}',
    ],
)
def test_an_unreadable_record_is_named_and_stays(devices, record_path, text):
    record_path.write_text(text, encoding="ascii")
    with pytest.raises(DeviceError, match=r"power_limits\.json"):
        restore_power_limits(record_path, devices)
    assert record_path.read_text(encoding="ascii") == text
    assert limits_w(devices) == FOUND_W


def test_a_second_holder_of_a_gpu_is_told_to_wait_and_changes_nothing(clock, tmp_path):
    device = SimulatedDevice(clock)
    with hold_power_limit([device], 150.0, tmp_path / "first.json"):
        second = hold_power_limit([device], 200.0, tmp_path / "second.json")
        with pytest.raises(BusyError, match="another run holds"), second:
            pytest.fail("both hold it")
        assert device.read().power_limit_w == 150.0
        assert not (tmp_path / "second.json").exists()
    assert device.read().power_limit_w == 300.0


def test_a_gpu_is_free_again_while_its_last_holder_is_still_remembered(clock, tmp_path):
    device = SimulatedDevice(clock)
    remembered = []
    for number in range(2):
        held = hold_power_limit([device], 150.0, tmp_path / f"{number}.json")
        remembered.append(held)
        with held:
            assert device.read().power_limit_w == 150.0
