"""The monitor: what it answers over a fake clock, and its thread."""

from __future__ import annotations

import csv
import os
import threading
import time
from pathlib import Path

import pytest

from tests.gpu.simulated import SimulatedDevice
from zeusrun.energy import monitor as monitor_module
from zeusrun.energy.device import Health, Reading
from zeusrun.energy.device_energy import Accounts
from zeusrun.energy.monitor import COLUMNS, EnergyMonitor
from zeusrun.energy.sharing import ForeignProcesses
from zeusrun.errors import DeviceError
from zeusrun.trial import EnergySource


def watch(monitor, clock, seconds, period_s=0.1):
    """Sample as the thread would, in no time. The first sample is now, the last at the end."""
    monitor.sample()
    for _ in range(round(seconds / period_s)):
        clock.advance(period_s)
        monitor.sample()


def test_energy_is_summed_over_devices(clock):
    devices = [SimulatedDevice(clock, demand_w=watts) for watts in (100.0, 200.0)]
    monitor = EnergyMonitor(devices, None, clock=clock)
    start_s = clock()
    watch(monitor, clock, 10.0)
    assert monitor.energy_between(start_s + 1.0, start_s + 9.0) == pytest.approx(300.0 * 8)
    assert monitor.power_w() == 300.0
    assert monitor.max_power_w == 600.0
    assert monitor.energy_source is EnergySource.COUNTER
    assert monitor.warnings == []


@pytest.mark.parametrize("has_counter", [True, False])
def test_head_and_tail_of_the_window_are_not_lost(clock, has_counter):
    device = SimulatedDevice(clock, demand_w=200.0, has_counter=has_counter)
    monitor = EnergyMonitor([device], None, clock=clock)
    start_s = clock()
    watch(monitor, clock, 2.0)
    assert monitor.energy_between(start_s - 0.05, start_s + 2.1) == pytest.approx(200.0 * 2.15)


def test_a_window_far_outside_the_samples_is_unknown(clock):
    monitor = EnergyMonitor([SimulatedDevice(clock)], None, clock=clock)
    start_s = clock()
    watch(monitor, clock, 2.0)
    assert monitor.energy_between(start_s, start_s + 3.1) is None
    assert monitor.energy_between(start_s - 1.1, start_s + 1.0) is None


def test_changing_power_is_integrated_to_within_a_sample(clock):
    device = SimulatedDevice(clock, demand_w=100.0, has_counter=False)
    monitor = EnergyMonitor([device], None, clock=clock)
    start_s = clock()
    watch(monitor, clock, 5.0)
    device.demand(300.0)
    clock.advance(0.1)
    watch(monitor, clock, 4.9)
    used_j = monitor.energy_between(start_s, start_s + 10.0)
    assert used_j == pytest.approx(2000.0, abs=(300.0 - 100.0) * 0.1)


def test_a_still_counter_is_replaced_by_sampled_power(clock):
    device = SimulatedDevice(clock, demand_w=200.0)
    device.stand_still()
    monitor = EnergyMonitor([device], None, clock=clock)
    start_s = clock()
    watch(monitor, clock, 10.0)
    assert monitor.energy_between(start_s, start_s + 10.0) == pytest.approx(2000.0)
    assert monitor.energy_source is EnergySource.INTEGRATED
    (warning,) = monitor.warnings
    assert "Simulated GPU (SIM-0)" in warning


def test_what_is_true_of_eight_devices_is_said_once(clock):
    devices = [SimulatedDevice(clock, uuid=f"SIM-{n}", has_counter=False) for n in range(8)]
    monitor = EnergyMonitor(devices, None, clock=clock)
    watch(monitor, clock, 2.0)
    (warning,) = monitor.warnings
    assert "counter of Simulated GPU (SIM-0) and 7 more is not supported" in warning


def test_a_restarted_counter_is_replaced_by_sampled_power(clock):
    device = SimulatedDevice(clock, demand_w=200.0)
    monitor = EnergyMonitor([device], None, clock=clock)
    start_s = clock()
    watch(monitor, clock, 5.0)
    device.restart_counter()
    watch(monitor, clock, 5.0)
    assert monitor.energy_between(start_s, start_s + 10.0) == pytest.approx(2000.0)
    assert len(monitor.warnings) == 1


def test_the_limit_of_a_window_is_the_one_that_was_read_for_most_of_it(clock):
    devices = [SimulatedDevice(clock), SimulatedDevice(clock)]
    monitor = EnergyMonitor(devices, None, clock=clock)
    start_s = clock()
    watch(monitor, clock, 2.0)
    for device in devices:
        device.set_power_limit_w(150.0)
    watch(monitor, clock, 3.0)
    assert monitor.limit_w(start_s, start_s + 5.0) == 150.0
    assert monitor.limit_w(start_s, start_s + 2.0) == 300.0
    devices[1].fail("GPU is lost")
    watch(monitor, clock, 10.0)
    assert monitor.limit_w(start_s, start_s + 15.0) is None


def test_of_mixed_sources_the_weakest_is_reported(clock):
    devices = [SimulatedDevice(clock), SimulatedDevice(clock, has_counter=False)]
    monitor = EnergyMonitor(devices, None, clock=clock)
    watch(monitor, clock, 1.0)
    assert monitor.energy_source is EnergySource.INTEGRATED


def test_a_device_that_fails_makes_all_energy_unknown_and_is_named_once(clock):
    good, bad = SimulatedDevice(clock, uuid="GOOD"), SimulatedDevice(clock, uuid="BAD")
    monitor = EnergyMonitor([good, bad], None, clock=clock)
    start_s = clock()
    watch(monitor, clock, 1.0)
    bad.fail("GPU is lost")
    watch(monitor, clock, 6.0)
    assert monitor.energy_between(start_s, start_s + 0.5) is None
    assert monitor.power_w() is None
    assert monitor.energy_source is None
    (warning,) = monitor.warnings
    assert "BAD" in warning
    assert "GPU is lost" in warning


def test_a_device_that_answers_again_within_seconds_is_billed_whole(clock):
    device = SimulatedDevice(clock, demand_w=200.0)
    monitor = EnergyMonitor([device], None, clock=clock)
    start_s = clock()
    watch(monitor, clock, 5.0)
    device.fail("driver restarts")
    watch(monitor, clock, 2.0)
    assert monitor.energy_between(start_s, start_s + 1.0) is None
    device.fail(None)
    device.restart_counter()
    watch(monitor, clock, 5.0)
    assert monitor.energy_between(start_s, start_s + 12.0) == pytest.approx(2400.0)
    (dropped,) = monitor.warnings
    assert "jumped from" in dropped


def test_a_device_missing_at_the_end_has_no_energy_though_it_was_back_before(clock):
    device = SimulatedDevice(clock)
    start_s = clock()
    with EnergyMonitor([device], None, period_s=60.0, clock=clock) as monitor:
        watch(monitor, clock, 2.0)
        device.fail("no answer")
        watch(monitor, clock, 1.0)
        device.fail(None)
        watch(monitor, clock, 1.0)
        device.fail("GPU is lost")
    assert monitor.energy_between(start_s, start_s + 1.0) is None
    (warning,) = monitor.warnings
    assert "unknown: Simulated GPU (SIM-0): GPU is lost" in warning


def test_energies_are_told_by_account(clock):
    devices = [
        SimulatedDevice(clock, uuid="A", demand_w=100.0),
        SimulatedDevice(clock, uuid="B", demand_w=200.0, has_counter=False),
    ]
    monitor = EnergyMonitor(devices, None, clock=clock)
    start_s = clock()
    watch(monitor, clock, 10.0)
    window = (start_s, start_s + 10.0)
    counter_j, integrated_j = monitor.accounts_j(*window)
    assert counter_j is None  # B has none
    assert integrated_j == pytest.approx(3000.0)
    alone = EnergyMonitor(devices[:1], None, clock=clock)
    start_s = clock()
    watch(alone, clock, 10.0)
    assert alone.accounts_j(start_s, start_s + 10.0) == pytest.approx(Accounts(1000.0, 1000.0))


class TwoFacedDevice(SimulatedDevice):
    """Its sampled power is half of what its counter tells, as some methods' are."""

    def read(self):
        reading = super().read()
        return Reading(reading.energy_j, reading.power_w / 2, reading.power_limit_w)


@pytest.mark.parametrize(("seconds", "warnings"), [(29.0, 0), (31.0, 1)])
def test_accounts_that_disagree_over_a_long_run_are_told_at_its_end(clock, seconds, warnings):
    device = TwoFacedDevice(clock, demand_w=100.0)
    with EnergyMonitor([device], None, period_s=60.0, clock=clock) as monitor:
        watch(monitor, clock, seconds)
    assert len(monitor.warnings) == warnings
    assert all("is uncertain: 3100 J" in text and "1550 J" in text for text in monitor.warnings)


def test_what_a_device_has_to_say_about_itself_is_told_once(clock):
    devices = [SimulatedDevice(clock), SimulatedDevice(clock), SimulatedDevice(clock)]
    devices[0].caveat = devices[1].caveat = "a MIG instance shares the energy of its GPU"
    with EnergyMonitor(devices, None, period_s=60.0, clock=clock) as monitor:
        pass
    assert monitor.warnings == ["a MIG instance shares the energy of its GPU"]


class AskedDevice(SimulatedDevice):
    """Counts how often it is asked who computes on it."""

    asked = 0

    def compute_processes(self):
        self.asked += 1
        return super().compute_processes()


OURS, FOREIGN = os.getpid(), os.getppid()


class OnlyThis(ForeignProcesses):
    def _owns(self, pid):
        return pid == OURS


def watch_processes(clock, devices, seconds=5.0):
    monitor = EnergyMonitor(devices, None, clock=clock, foreign=OnlyThis(first_namespace=True))
    watch(monitor, clock, seconds)
    return monitor


def test_a_foreign_process_on_any_gpu_makes_the_run_shared_with_one_warning(clock):
    devices = [SimulatedDevice(clock, uuid="GPU-A"), SimulatedDevice(clock, uuid="GPU-B")]
    devices[0].compute(frozenset({OURS}))
    devices[1].compute(frozenset({OURS, FOREIGN}))
    monitor = watch_processes(clock, devices)
    assert monitor.shared is True
    (warning,) = monitor.warnings
    assert f"GPUs: {FOREIGN} on Simulated GPU (GPU-B)" in warning
    assert "GPU-A" not in warning


def test_a_foreign_process_that_is_there_at_one_look_alone_is_on_its_way_out(clock):
    device = SimulatedDevice(clock)
    device.compute(frozenset({FOREIGN}))
    monitor = watch_processes(clock, [device], seconds=0.5)
    assert monitor.shared is None
    device.compute(frozenset({OURS}))
    watch(monitor, clock, 5.0)
    assert monitor.shared is False
    assert monitor.warnings == []


def test_a_run_stays_shared_when_the_foreign_process_has_gone(clock):
    device = SimulatedDevice(clock)
    device.compute(frozenset({FOREIGN}))
    monitor = watch_processes(clock, [device])
    device.compute(frozenset())
    watch(monitor, clock, 5.0)
    assert monitor.shared is True
    assert len(monitor.warnings) == 1


def test_a_job_alone_on_its_gpus_is_not_shared(clock):
    device = SimulatedDevice(clock)
    monitor = watch_processes(clock, [device])
    device.compute(frozenset({OURS}))
    watch(monitor, clock, 5.0)
    assert monitor.shared is False
    assert monitor.warnings == []


def test_who_computes_is_asked_about_once_a_second(clock):
    device = AskedDevice(clock)
    watch_processes(clock, [device], seconds=10.0)
    assert 9 <= device.asked <= 11


def test_devices_that_do_not_tell_who_computes_leave_it_unknown(clock):
    device = SimulatedDevice(clock)
    device.compute(None)
    monitor = watch_processes(clock, [device])
    assert monitor.shared is None
    assert monitor.warnings == []


def test_one_look_that_tells_nothing_changes_nothing_but_several_make_it_unknown(clock):
    device = SimulatedDevice(clock)
    monitor = watch_processes(clock, [device])
    device.compute(None)
    watch(monitor, clock, 1.0)
    assert monitor.shared is False
    watch(monitor, clock, 5.0)
    assert monitor.shared is None


def test_processes_on_what_is_no_gpu_are_not_asked_about(clock):
    device = AskedDevice(clock)
    device.is_gpu = False
    monitor = watch_processes(clock, [device])
    assert (monitor.shared, device.asked) == (None, 0)


def test_a_gpu_that_does_not_tell_its_processes_for_a_moment_is_no_failure(clock):
    class Reluctant(SimulatedDevice):
        def compute_processes(self):
            raise DeviceError("not now")

    monitor = watch_processes(clock, [Reluctant(clock)])
    assert monitor.warnings == []
    assert monitor.energy_source is EnergySource.COUNTER


def test_an_unknown_maximum_power_makes_the_sum_unknown(clock):
    devices = [SimulatedDevice(clock), SimulatedDevice(clock)]
    devices[1].max_power_w = None
    assert EnergyMonitor(devices, None, clock=clock).max_power_w is None


def test_without_devices_everything_is_unknown(clock):
    monitor = EnergyMonitor([], None, clock=clock)
    watch(monitor, clock, 1.0)
    assert monitor.energy_between(clock() - 0.5, clock()) is None
    assert monitor.power_w() is None
    assert monitor.max_power_w is None
    assert monitor.energy_source is None


class CountingDevice(SimulatedDevice):
    """Lets a test wait for samples instead of for time."""

    def __init__(self, clock=time.monotonic, **has):
        super().__init__(clock, **has)
        self._reads = threading.Semaphore(0)

    def read(self):
        self._reads.release()
        return super().read()

    def wait_for_reads(self, count):
        for _ in range(count):
            assert self._reads.acquire(timeout=300)


def energy_threads():
    return [thread for thread in threading.enumerate() if thread.name == "zeusrun-energy"]


def test_a_daemon_thread_samples_until_the_block_is_left():
    device = CountingDevice()
    with EnergyMonitor([device], None, period_s=0.001):
        device.wait_for_reads(5)
        (thread,) = energy_threads()
        assert thread.daemon
    assert energy_threads() == []


def test_a_block_shorter_than_the_period_is_measured_whole(clock):
    device = SimulatedDevice(clock, demand_w=200.0)
    start_s = clock()
    with EnergyMonitor([device], None, period_s=60.0, clock=clock) as monitor:
        clock.advance(5.0)
    assert monitor.energy_between(start_s, start_s + 5.0) == pytest.approx(1000.0)


def test_leaving_the_block_does_not_wait_out_the_period():
    device = CountingDevice()
    with EnergyMonitor([device], None, period_s=3600.0):
        device.wait_for_reads(1)
    device.wait_for_reads(1)  # the last sample, taken on leaving


def test_a_failing_device_does_not_raise_out_of_the_block():
    device = CountingDevice()
    with EnergyMonitor([device], None, period_s=0.001) as monitor:
        device.fail("Xid 79")
    assert "Xid 79" in monitor.warnings[0]
    assert monitor.energy_between(time.monotonic() - 0.01, time.monotonic()) is None


class BuggyDevice(CountingDevice):
    buggy = False

    def read(self):
        reading = super().read()
        if self.buggy:
            raise ZeroDivisionError("a bug")
        return reading


def test_a_bug_in_the_thread_is_raised_on_leaving_the_block():
    device = BuggyDevice()
    reached = False
    with (  # noqa: PT012 - what is tested is that the block runs to its end
        pytest.raises(ZeroDivisionError, match="a bug"),
        EnergyMonitor([device], None, period_s=0.001) as monitor,
    ):
        device.buggy = True
        for thread in energy_threads():
            thread.join(300)
        start_s = time.monotonic()
        assert monitor.energy_between(start_s, start_s) is None
        assert "ZeroDivisionError: a bug" in monitor.warnings[0]
        reached = True
    assert reached
    assert energy_threads() == []


def test_a_bug_in_the_thread_does_not_hide_the_exception_that_leaves_the_block():
    device = BuggyDevice()
    device.buggy = True
    with pytest.raises(KeyboardInterrupt), EnergyMonitor([device], None):
        raise KeyboardInterrupt


class HangingDevice(SimulatedDevice):
    def __init__(self):
        super().__init__(time.monotonic)
        self.hanging = threading.Event()
        self.release = threading.Event()
        self.armed = False

    def read(self):
        if self.armed:
            self.hanging.set()
            self.release.wait(300)
        return super().read()


def test_a_driver_call_that_hangs_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(monitor_module, "_JOIN_TIMEOUT_S", 0.0)
    device = HangingDevice()
    with EnergyMonitor([device], None, period_s=0.001) as monitor:
        device.armed = True
        assert device.hanging.wait(300)
    (thread,) = energy_threads()
    assert "Simulated GPU (SIM-0) has not answered" in monitor.warnings[0]
    assert monitor.energy_source is None
    device.release.set()
    thread.join(300)


def test_a_device_that_hangs_when_asked_who_computes_is_named_too(monkeypatch):
    class Hanging(HangingDevice):
        read = SimulatedDevice.read

        def compute_processes(self):
            HangingDevice.read(self)
            return frozenset()

    monkeypatch.setattr(monitor_module, "_JOIN_TIMEOUT_S", 0.0)
    device = Hanging()
    foreign = ForeignProcesses(first_namespace=True)
    with EnergyMonitor([device], None, period_s=0.001, foreign=foreign) as monitor:
        device.armed = True
        assert device.hanging.wait(300)
    (thread,) = energy_threads()
    assert "Simulated GPU (SIM-0) has not answered" in monitor.warnings[0]
    device.release.set()
    thread.join(300)


def test_power_is_unknown_while_the_devices_hang(clock):
    monitor = EnergyMonitor([SimulatedDevice(clock)], None, clock=clock)
    watch(monitor, clock, 1.0)
    clock.advance(4.0)
    assert monitor.power_w() == 200.0
    clock.advance(2.0)
    assert monitor.power_w() is None


def test_a_counter_that_leaps_beyond_what_its_gpu_can_draw_is_replaced_by_sampled_power(clock):
    class Leaping(SimulatedDevice):
        leap_j = 0.0

        def read(self):
            reading = super().read()
            return Reading(reading.energy_j + self.leap_j, reading.power_w, reading.power_limit_w)

    device = Leaping(clock)  # of at most 300 W
    monitor = EnergyMonitor([device], None, clock=clock)
    start_s = clock()
    watch(monitor, clock, 5.0)
    device.leap_j = 1500.0
    clock.advance(0.1)
    watch(monitor, clock, 4.9)
    assert monitor.energy_between(start_s, start_s + 10.0) == pytest.approx(2000.0)
    (warning,) = monitor.warnings
    assert "jumped from" in warning


def rows_of(path):
    with path.open(encoding="ascii", newline="") as file:
        return list(csv.DictReader(file))


def test_the_csv_has_a_row_per_device_and_sample(clock, tmp_path):
    path = tmp_path / "power.csv"
    devices = [
        SimulatedDevice(clock, uuid="A", demand_w=123.4567),
        SimulatedDevice(clock, uuid="B", has_counter=False),
    ]
    with EnergyMonitor(devices, path, period_s=60.0, clock=clock) as monitor:
        clock.advance(0.5)
        monitor.sample()
    first_a, first_b, second_a, second_b = rows_of(path)[:4]
    assert ",".join(first_a) == COLUMNS
    assert first_a["time_s"] == "0.000"
    first_five = {name: second_a[name] for name in list(second_a)[:5]}
    assert first_five == {
        "time_s": "0.500",
        "uuid": "A",
        "power_w": "123.457",
        "power_limit_w": "300.000",
        "energy_j": "61.728",
    }
    assert (first_b["uuid"], first_b["power_w"]) == ("B", "200.000")
    # Without a counter it is integrated, so that samples left out lose no joule.
    assert float(second_b["energy_j"]) - float(first_b["energy_j"]) == 100.0


def test_the_csv_tells_how_a_device_fares(clock, tmp_path):
    class Healthy(SimulatedDevice):
        def read(self):
            health = Health(0.5, 65.0, 1410.0, 1215.0, ("sw_power_cap",))
            return Reading(1.0, 200.0, 300.0, health)

    path = tmp_path / "power.csv"
    with EnergyMonitor([Healthy(clock)], path, period_s=60.0, clock=clock):
        pass
    row = rows_of(path)[0]
    assert (row["utilization"], row["temperature_c"]) == ("0.5", "65")
    assert (row["sm_clock_mhz"], row["memory_clock_mhz"]) == ("1410", "1215")
    assert row["throttle_reasons"] == "sw_power_cap"


def test_the_csv_can_be_read_while_the_run_goes_on(tmp_path):
    device = CountingDevice()
    path = tmp_path / "power.csv"
    with EnergyMonitor([device], path, period_s=0.001):
        device.wait_for_reads(3)  # the third read starts after the second row is written
        assert len(rows_of(path)) >= 2


def test_the_power_of_a_counter_alone_is_in_the_csv_too(clock, tmp_path):
    path = tmp_path / "power.csv"
    device = SimulatedDevice(clock, demand_w=50.0, has_power=False)
    with EnergyMonitor([device], path, period_s=60.0, clock=clock) as monitor:
        clock.advance(0.5)
        monitor.sample()
    assert [row["power_w"] for row in rows_of(path)][:2] == ["", "50.000"]


@pytest.mark.parametrize("path", [Path("/dev/full"), Path("/dev/null/power.csv")])
def test_a_csv_that_cannot_be_started_leaves_one_warning_and_the_metering(clock, path):
    monitor = EnergyMonitor([SimulatedDevice(clock)], path, period_s=60.0, clock=clock)
    start_s = clock()
    with monitor:
        watch(monitor, clock, 1.0)
    (warning,) = monitor.warnings
    assert str(path) in warning
    assert monitor.energy_between(start_s, start_s + 1.0) == pytest.approx(200.0)


def test_a_csv_that_fails_in_mid_run_leaves_one_warning_and_the_metering(clock, tmp_path):
    path = tmp_path / "power.csv"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    monitor = EnergyMonitor([SimulatedDevice(clock)], path, period_s=60.0, clock=clock)
    start_s = clock()
    with monitor:
        watch(monitor, clock, 1.0)
        assert os.read(reader, 1 << 16).count(b"\n") > 10
        os.close(reader)
        watch(monitor, clock, 1.0)
    (warning,) = monitor.warnings
    assert "power.csv is incomplete" in warning
    assert monitor.energy_between(start_s, start_s + 2.0) == pytest.approx(400.0)


def test_a_device_with_no_momentary_power_has_none_before_its_second_sample(clock):
    device = SimulatedDevice(clock, has_power=False)
    monitor = EnergyMonitor([device], None, clock=clock)
    monitor.sample()
    assert monitor.power_w() is None


def test_a_device_that_is_silent_about_everything_has_no_energy(clock):
    class Silent(SimulatedDevice):
        def read(self):
            return Reading(None, None, None)

    monitor = EnergyMonitor([Silent(clock), SimulatedDevice(clock)], None, clock=clock)
    start_s = clock()
    watch(monitor, clock, 1.0)
    assert monitor.energy_between(start_s, start_s + 1.0) is None
    assert monitor.energy_source is None
