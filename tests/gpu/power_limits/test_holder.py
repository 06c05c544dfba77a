"""Power limits are held, and the limits found restored."""

from __future__ import annotations

import functools
import platform
import secrets
import subprocess
import sys

import pytest

from tests.gpu.simulated import SimulatedDevice
from zeusrun.energy.cpu import EstimatedCpu
from zeusrun.errors import BusyError, DeviceError, LimitRefusedError
from zeusrun.gpu.power_limits.holder import LimitHolder, limit_grid_w
from zeusrun.gpu.power_limits.original_limits import (
    LimitLock,
    LimitRecord,
    is_held,
    read_record,
    recorded_gpus,
    repair_limits,
    write_record,
)
from zeusrun.lever import POWER, Lever

watts = functools.partial(Lever, POWER)


class NoGuard:
    """Stands for the guard, which tests/gpu/test_optimize.py runs for real."""

    def __init__(self):
        self.watches = []
        self.dismissed = False
        self.alive = True

    def __call__(self, uuids, descriptors):
        assert all(descriptor > 2 for descriptor in descriptors)
        self.watches.append(uuids)
        self.alive = True
        return self

    def is_alive(self):
        return self.alive

    def dismiss(self):
        self.dismissed = True


@pytest.fixture
def original_w():
    # Locks are the machine's: names of its own for each test.
    serial = secrets.token_hex(4)
    return {f"A-{serial}": 300.0, f"B-{serial}": 212.345}


@pytest.fixture
def devices(clock, original_w):
    devices = [SimulatedDevice(clock, uuid=uuid) for uuid in original_w]
    devices[1].set_power_limit_w(212.345)
    return devices


@pytest.fixture
def guard():
    return NoGuard()


@pytest.fixture
def holder(devices, tmp_path, guard):
    return LimitHolder(devices, tmp_path / "gpus", guard)


def limits_w(devices):
    return {device.uuid: device.read().power_limit_w for device in devices}


def test_limits_are_held_and_then_restored_exactly(devices, holder, original_w, tmp_path):
    with holder:
        holder.hold(watts(150.0), "job-1-1")
        assert set(limits_w(devices).values()) == {150.0}
        holder.hold(watts(125.0), "job-1-1")
        assert set(limits_w(devices).values()) == {125.0}
    assert limits_w(devices) == original_w
    assert recorded_gpus(tmp_path / "gpus") == []
    assert holder.unrestored is None


def test_before_the_first_change_the_limits_are_on_disk_and_a_guard_watches(
    devices, holder, original_w, guard, tmp_path
):
    seen = []
    change = devices[0].set_power_limit_w

    def spy(watts):
        if watts == 150.0:
            records = [read_record(tmp_path / "gpus", uuid) for uuid in original_w]
            seen.append(({r.uuid: r.original_w for r in records}, [*guard.watches]))
        change(watts)

    devices[0].set_power_limit_w = spy
    with holder:
        assert guard.watches == []
        holder.hold(watts(150.0), "job-1-1")
    assert seen == [(original_w, [[*original_w]])]
    assert guard.dismissed


def test_nothing_is_written_where_nothing_is_changed(devices, holder, guard, tmp_path):
    devices[1].set_power_limit_w(300.0)
    with holder:
        holder.hold(watts(300.0), "job-1-1")
    assert guard.watches == []
    assert recorded_gpus(tmp_path / "gpus") == []


def test_limits_are_restored_when_the_block_raises(devices, holder, original_w):
    def interrupted():
        with holder:
            holder.hold(watts(150.0), "job-1-1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert limits_w(devices) == original_w


def test_limits_are_restored_though_the_record_was_deleted(devices, holder, original_w, tmp_path):
    with holder:
        holder.hold(watts(150.0), "job-1-1")
        for path in (tmp_path / "gpus").iterdir():
            path.unlink()
    assert limits_w(devices) == original_w


def test_they_can_be_put_back_and_changed_again(devices, holder, original_w, guard):
    with holder:
        holder.hold(watts(150.0), "job-1-1")
        holder.restore()
        assert limits_w(devices) == original_w
        holder.hold(watts(200.0), "job-1-2")
        assert set(limits_w(devices).values()) == {200.0}
    assert limits_w(devices) == original_w
    assert len(guard.watches) == 1


def test_a_guard_that_has_died_is_replaced_while_limits_are_changed(holder, guard):
    with holder:
        holder.keep_guarded()
        assert guard.watches == []
        holder.hold(watts(150.0), "job-1-1")
        holder.keep_guarded()
        assert len(guard.watches) == 1
        guard.alive = False
        holder.keep_guarded()
        assert len(guard.watches) == 2
        guard.alive = False
        holder.hold(watts(125.0), "job-1-1")
        assert len(guard.watches) == 3


def test_limits_are_put_back_where_a_gpu_does_not_answer_when_the_next_one_is_wanted(
    devices, holder, original_w
):
    with holder:
        holder.hold(watts(125.0), "job-1-1")
        ask = devices[1].power_limit_range_w

        def fail():
            devices[1].power_limit_range_w = ask
            raise DeviceError("Timeout")

        devices[1].power_limit_range_w = fail
        with pytest.raises(DeviceError, match="Timeout"):
            holder.hold(watts(150.0), "job-1-1")
        assert limits_w(devices) == original_w


def test_a_record_that_somebody_has_removed_is_written_again(devices, holder, tmp_path):
    with holder:
        holder.hold(watts(125.0), "job-1-1")
        for path in (tmp_path / "gpus").glob("*.json"):
            path.unlink()
        holder.hold(watts(150.0), "job-1-1")
        assert recorded_gpus(tmp_path / "gpus") == sorted(device.uuid for device in devices)


def test_where_records_cannot_be_written_any_more_limits_are_put_back(
    devices, holder, original_w, monkeypatch
):
    def forbid(_path):
        raise PermissionError(13, "Permission denied")

    with holder:
        holder.hold(watts(125.0), "job-1-1")
        with monkeypatch.context() as patch:
            patch.setattr("pathlib.Path.exists", forbid)
            with pytest.raises(DeviceError, match="no power limit is changed"):
                holder.hold(watts(150.0), "job-1-1")
            assert limits_w(devices) == original_w


def test_two_launchers_take_the_locks_in_the_same_order(devices, guard, tmp_path, monkeypatch):
    taken = []
    take = LimitLock.acquire
    monkeypatch.setattr(LimitLock, "acquire", lambda lock: taken.append(lock._uuid) or take(lock))
    for order in (devices, devices[::-1]):
        with LimitHolder(order, tmp_path, guard):
            pass
    assert taken[:2] == taken[2:]


def test_a_launcher_in_another_network_namespace_is_seen_by_the_file(original_w, tmp_path):
    uuid = next(iter(original_w))
    child = [sys.executable, "-c", HOLDS, str(tmp_path), uuid]
    with subprocess.Popen(
        ["unshare", "--net", *child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        if other.stdout.readline() != "True\n":
            pytest.skip("a network namespace cannot be made here")
        lock = LimitLock(uuid, tmp_path)
        assert not lock.acquire()
        assert is_held(uuid, tmp_path)
        other.communicate()
        assert lock.acquire()
        lock.release()


HOLDS = """
import sys
from pathlib import Path
from zeusrun.gpu.power_limits.original_limits import LimitLock
lock = LimitLock(sys.argv[2], Path(sys.argv[1]))
print(lock.acquire(), flush=True)
sys.stdin.read()
"""


def test_whether_a_limit_is_held_can_be_asked(original_w, tmp_path):
    uuid = next(iter(original_w))
    lock = LimitLock(uuid, tmp_path)
    assert lock.acquire()
    assert is_held(uuid, tmp_path)
    lock.release()
    assert not is_held(uuid, tmp_path)


def test_records_of_another_machine_are_left_to_it(devices, tmp_path):
    uuid = devices[0].uuid
    other = LimitRecord(uuid, 222.5, "job-1-1", host="another-machine", boot_id="another")
    write_record(tmp_path, other)
    assert repair_limits(tmp_path, pytest.fail) == ([], [], [])
    assert read_record(tmp_path, uuid).is_elsewhere
    assert recorded_gpus(tmp_path) == [uuid]


def test_records_of_a_dead_container_are_those_of_its_machine(devices, tmp_path):
    uuid = devices[0].uuid  # each container has a host name of its own, and one kernel boots once
    record = LimitRecord(uuid, 222.5, "job-1-1", set_w=(150.0,), host="3f2a9c81d6e0")
    write_record(tmp_path, record)
    devices[0].set_power_limit_w(150.0)
    assert not read_record(tmp_path, uuid).is_elsewhere
    (restored,), problems, _ = repair(devices, tmp_path)
    assert (restored.uuid, problems) == (uuid, [])
    assert devices[0].power_limit_w() == 222.5


def test_without_a_boot_id_the_host_tells_machines_apart(devices, tmp_path):
    uuid = devices[0].uuid
    for host, elsewhere in (("another-machine", True), (platform.node(), False)):
        write_record(tmp_path, LimitRecord(uuid, 222.5, "job-1-1", host=host, boot_id=None))
        assert read_record(tmp_path, uuid).is_elsewhere is elsewhere


def test_limits_that_cannot_be_guarded_any_more_are_put_back(devices, holder, guard, original_w):
    with holder:
        holder.hold(watts(150.0), "job-1-1")
        guard.alive = False
        holder._start_guard = refuse
        with pytest.raises(DeviceError, match="no guard"):
            holder.keep_guarded()
        assert limits_w(devices) == original_w


def refuse(_uuids, _descriptors):
    raise DeviceError("no guard could be started")


def test_without_a_guard_no_limit_is_changed(devices, original_w, tmp_path):
    holder = LimitHolder(devices, tmp_path, refuse)
    with holder, pytest.raises(DeviceError, match="no guard"):
        holder.hold(watts(150.0), "job-1-1")
    assert limits_w(devices) == original_w
    assert recorded_gpus(tmp_path) == []


def test_without_a_record_no_limit_is_changed(devices, original_w, guard, tmp_path):
    (tmp_path / "gpus").write_text("a file where the directory should be")
    holder = LimitHolder(devices, tmp_path / "gpus" / "below", guard)
    with pytest.raises(DeviceError, match="no power limit is changed"), holder:
        holder.hold(watts(150.0), "job-1-1")
    assert limits_w(devices) == original_w


def test_a_gpu_that_refuses_half_way_leaves_all_as_found(devices, holder, original_w, tmp_path):
    with holder:
        holder.hold(watts(150.0), "job-1-1")
        change = devices[1].set_power_limit_w

        def refuse_lower(watts):
            if watts < 150.0:
                raise DeviceError("not today")
            change(watts)

        devices[1].set_power_limit_w = refuse_lower
        with pytest.raises(DeviceError, match="not today"):
            holder.hold(watts(125.0), "job-1-1")
        assert limits_w(devices) == original_w
    assert recorded_gpus(tmp_path / "gpus") == []


def test_without_permission_it_says_so_and_touches_nothing(
    devices, holder, original_w, guard, tmp_path
):
    devices[0].refuse_limits()
    with holder:
        assert holder.refused
        assert holder.levers == ()
        assert not any(is_held(uuid, tmp_path / "gpus") for uuid in original_w)
        with pytest.raises(LimitRefusedError, match=r"of 150 W cannot be held: .*mode: observe"):
            holder.hold(watts(150.0), "job-1-1")
    assert limits_w(devices) == original_w
    assert guard.watches == []


def test_a_limit_that_can_be_read_but_not_set_is_left_alone(devices, holder):
    def refuse(_watts):
        raise DeviceError("Not Supported")

    devices[0].set_power_limit_w = refuse
    with holder:
        assert "Not Supported" in holder.refused


def test_after_a_restore_that_failed_in_part_a_later_limit_is_on_record_for_every_gpu(
    devices, holder, original_w, tmp_path
):
    with holder:
        holder.hold(watts(150.0), "job-1-1")
        change = devices[1].set_power_limit_w

        def fail(_watts):
            raise DeviceError("not now")

        devices[1].set_power_limit_w = fail
        with pytest.raises(DeviceError, match="not now"):
            holder.restore()
        assert recorded_gpus(tmp_path / "gpus") == [devices[1].uuid]
        devices[1].set_power_limit_w = change
        holder.hold(watts(125.0), "job-1-2")
        assert recorded_gpus(tmp_path / "gpus") == sorted(original_w)
    assert limits_w(devices) == original_w


def test_a_limit_out_of_range_is_refused_naming_the_range(devices, holder, original_w):
    with holder, pytest.raises(DeviceError, match="between 100 and 300 W"):
        holder.hold(watts(301.0), "job-1-1")
    assert limits_w(devices) == original_w


def test_what_cannot_be_limited_is_left_alone(devices, guard, tmp_path):
    cpu = EstimatedCpu("Fake CPU")
    with LimitHolder([cpu, *devices], tmp_path, guard) as holder:
        holder.hold(watts(150.0), "job-1-1")
    with LimitHolder([cpu], tmp_path, guard) as holder:
        assert "no GPU" in holder.refused


def test_a_second_holder_of_the_same_gpu_is_refused_by_name(devices, holder, guard, tmp_path):
    with holder:
        holder.hold(watts(150.0), "nightly-7-1")
        with (
            pytest.raises(BusyError, match="nightly-7-1"),
            LimitHolder(devices[1:], tmp_path / "gpus", guard),
        ):
            pytest.fail("it must not be entered")
        assert is_held(devices[0].uuid, tmp_path / "gpus")
    with LimitHolder(devices, tmp_path / "gpus", guard):
        pass


def test_holders_of_other_gpus_are_not_in_the_way(devices, guard, tmp_path):
    with (
        LimitHolder(devices[:1], tmp_path, guard) as first,
        LimitHolder(devices[1:], tmp_path, guard) as second,
    ):
        first.hold(watts(150.0), "a-1-1")
        second.hold(watts(200.0), "b-1-1")
        assert list(limits_w(devices).values()) == [150.0, 200.0]


def test_what_a_dead_launcher_left_is_restored_before_it_is_taken_for_the_original(
    devices, guard, tmp_path
):
    write_record(tmp_path, LimitRecord(devices[0].uuid, 287.5, "dead-1-1", set_w=(125.0,)))
    devices[0].set_power_limit_w(125.0)
    with LimitHolder(devices[:1], tmp_path, guard) as holder:
        holder.hold(watts(150.0), "job-1-1")
    assert devices[0].read().power_limit_w == 287.5


def test_a_gpu_that_does_not_take_its_limit_back_keeps_its_record(devices, holder, tmp_path):
    with holder:
        holder.hold(watts(150.0), "job-1-1")
        devices[0].fail("GPU is lost")
    assert "lost" in holder.unrestored
    assert "zeusrun repair" in holder.unrestored
    assert recorded_gpus(tmp_path / "gpus") == [devices[0].uuid]
    assert devices[1].read().power_limit_w == 212.345


def test_repair_restores_what_nobody_holds(devices, holder, original_w, guard, tmp_path):
    present = {device.uuid: device for device in devices}
    with LimitHolder(devices[:1], tmp_path / "gpus", guard) as held:
        held.hold(watts(150.0), "running-1-1")
        write_record(tmp_path / "gpus", LimitRecord(devices[1].uuid, 222.5, "dead-1-1"))
        restored, problems, busy = repair_limits(tmp_path / "gpus", present.__getitem__)
        assert busy == [devices[0].uuid]
        assert [limit.uuid for limit in restored] == [devices[1].uuid]
        assert "the value before dead-1-1" in restored[0].text
        assert problems == []
        assert list(limits_w(devices).values()) == [150.0, 222.5]


def test_repair_says_what_stays_changed_where_a_gpu_is_lost(original_w, tmp_path):
    def lost(_uuid):
        raise DeviceError("GPU-1 is lost")

    write_record(tmp_path, LimitRecord(next(iter(original_w)), 222.5, "dead-1-1"))
    restored, problems, _ = repair_limits(tmp_path, lost)
    assert restored == []
    (path,), (problem,) = tmp_path.glob("*.json"), problems
    what = "a power limit is not restored (222.5 W, the value before dead-1-1): GPU-1 is lost"
    assert problem == f"{what}. If this GPU was removed for good, delete its record: {path}"
    assert len(recorded_gpus(tmp_path)) == 1


def test_repair_says_what_it_cannot_restore(devices, tmp_path):
    write_record(tmp_path, LimitRecord(devices[0].uuid, 222.5, "dead-1-1"))
    write_record(tmp_path, LimitRecord(devices[1].uuid, 200.0, "dead-1-2"))
    devices[0].fail("GPU is lost")
    present = {device.uuid: device for device in devices}
    restored, problems, _ = repair_limits(tmp_path, present.__getitem__)
    assert [record.uuid for record in restored] == [devices[1].uuid]
    assert "lost" in problems[0]
    assert recorded_gpus(tmp_path) == [devices[0].uuid]


@pytest.mark.parametrize(
    "content",
    [
        *("", "{}", "[]", "7", "nonsense", '{"version": 9}', '{"version": 1, "original_w": "x"}'),
        f'{{"version": 1, "original_w": 1{"0" * 400}}}',
        "[" * 200_000,
    ],
    ids=["empty", "{}", "[]", "7", "nonsense", "version 9", "no number", "too large", "too deep"],
)
def test_a_record_that_cannot_be_read_is_named_and_kept(devices, tmp_path, content):
    write_record(tmp_path, LimitRecord(devices[0].uuid, 222.5, "dead-1-1"))
    (path,) = tmp_path.iterdir()
    path.write_text(content)
    restored, problems, _ = repair_limits(tmp_path, lambda _uuid: devices[0])
    assert restored == []
    assert str(path) in problems[0]
    assert path.exists()


# Somebody else sets limits, too


def test_a_cap_set_during_a_run_is_not_overridden_by_the_next_limit(devices, holder, original_w):
    capped, other = devices
    with holder:
        holder.hold(watts(150.0), "job-1-1")
        capped.set_power_limit_w(120.0)
        with pytest.raises(LimitRefusedError, match=r"stays at 120 W: .* somebody else"):
            holder.hold(watts(175.0), "job-1-1")
        assert limits_w(devices) == {capped.uuid: 120.0, other.uuid: original_w[other.uuid]}
        assert "120 W" in holder.taken
        assert holder.levers == ()
        with pytest.raises(LimitRefusedError):
            holder.hold(watts(150.0), "job-1-2")
    assert capped.read().power_limit_w == 120.0
    assert holder.unrestored is None  # it is told already


def test_a_cap_set_before_the_first_limit_is_not_overridden(devices, holder, original_w, tmp_path):
    with holder:
        devices[0].set_power_limit_w(120.0)
        with pytest.raises(LimitRefusedError, match="somebody else"):
            holder.hold(watts(150.0), "job-1-1")
    assert limits_w(devices) == {**original_w, devices[0].uuid: 120.0}
    assert recorded_gpus(tmp_path / "gpus") == []


def test_a_cap_set_during_a_run_is_not_overridden_at_its_end(devices, holder, guard, tmp_path):
    with holder:
        holder.hold(watts(150.0), "job-1-1")
        devices[0].set_power_limit_w(120.0)
        holder.restore()
        assert recorded_gpus(tmp_path / "gpus") == []  # so that the guard leaves it alone, too
    assert devices[0].read().power_limit_w == 120.0
    assert devices[1].read().power_limit_w == 212.345
    assert recorded_gpus(tmp_path / "gpus") == []


def test_what_is_seen_only_on_leaving_the_block_is_told_then(devices, holder):
    with holder:
        holder.hold(watts(150.0), "job-1-1")
        devices[0].set_power_limit_w(120.0)
    assert "stays at 120 W" in holder.unrestored


def test_a_driver_may_round_what_it_is_told(devices, holder, original_w):
    change = devices[0].set_power_limit_w
    devices[0].set_power_limit_w = lambda watts: change(watts if watts == 300.0 else watts - 0.4)
    with holder:
        holder.hold(watts(150.0), "job-1-1")
        holder.hold(watts(175.0), "job-1-1")
    assert limits_w(devices) == original_w
    assert holder.taken is None


@pytest.mark.parametrize("instead_w", [300.0, 200.0])  # it ignores the limit, or takes another
def test_a_driver_that_does_not_do_what_it_is_told_is_found_out(
    devices, holder, original_w, tmp_path, instead_w
):
    change = devices[0].set_power_limit_w
    devices[0].set_power_limit_w = lambda watts: change(watts if watts == 300.0 else instead_w)
    with holder:
        with pytest.raises(DeviceError, match=rf"150 W and reports {instead_w:g} W"):
            holder.hold(watts(150.0), "job-1-1")
        assert limits_w(devices) == original_w
    assert recorded_gpus(tmp_path / "gpus") == []


def test_a_record_says_what_is_zeusruns_before_it_is_set(devices, holder, guard, tmp_path):
    seen = []
    change = devices[0].set_power_limit_w

    def spy(watts):
        if watts in (150.0, 175.0):
            on_disk = read_record(tmp_path / "gpus", devices[0].uuid).set_w
            seen.append(on_disk)
        change(watts)

    devices[0].set_power_limit_w = spy
    with holder:
        holder.hold(watts(150.0), "job-1-1")
        holder.hold(watts(175.0), "job-1-1")
    assert seen == [(150.0,), (150.0, 175.0)]


def repair(devices, directory):
    present = {device.uuid: device for device in devices}
    return repair_limits(directory, present.__getitem__)


def test_repair_does_not_override_a_cap_that_was_set_since(devices, tmp_path):
    uuid = devices[0].uuid
    write_record(tmp_path, LimitRecord(uuid, 300.0, "dead-1-1", set_w=(125.0, 150.0)))
    devices[0].set_power_limit_w(120.0)
    (restored,), problems, _ = repair(devices, tmp_path)
    assert (restored.uuid, problems) == (uuid, [])
    assert "stays at 120 W" in restored.text
    assert "somebody else or a reboot has set it" in restored.text
    assert devices[0].read().power_limit_w == 120.0
    assert recorded_gpus(tmp_path) == []


@pytest.mark.parametrize("set_w", [(125.0, 150.0), ()])  # (): its record was deleted
def test_repair_restores_what_is_still_zeusruns(devices, tmp_path, set_w):
    write_record(tmp_path, LimitRecord(devices[0].uuid, 287.5, "dead-1-1", set_w=set_w))
    devices[0].set_power_limit_w(125.0)
    (restored,), _, _ = repair(devices, tmp_path)
    assert "restored to 287.5 W, the value before dead-1-1" in restored.text
    assert devices[0].read().power_limit_w == 287.5


def test_what_zeusrun_has_set_is_its_own_whatever_the_boot_id_says(devices, tmp_path):
    old = LimitRecord(devices[0].uuid, 287.5, "dead-1-1", set_w=(150.0,), boot_id="a container's")
    write_record(tmp_path, old)
    devices[0].set_power_limit_w(150.0)
    (restored,), _, _ = repair(devices, tmp_path)
    assert "restored to 287.5 W" in restored.text
    assert devices[0].read().power_limit_w == 287.5
    assert recorded_gpus(tmp_path) == []


class LateDaemon:
    """Stands for a zeusd that answers too late, and carries out what it was asked for in order."""

    def __init__(self, device):
        self._change = device.set_power_limit_w
        self.asked_w = []
        self.late = False
        device.set_power_limit_w = self.set_power_limit_w

    def set_power_limit_w(self, watts):
        self.asked_w.append(watts)
        if self.late:
            raise DeviceError("zeusd took a limit and does not answer")
        self.catch_up()

    def catch_up(self):
        for watts in self.asked_w:
            self._change(watts)
        self.asked_w.clear()


def test_a_limit_that_a_daemon_sets_late_is_followed_by_the_one_found(devices, holder, tmp_path):
    daemon = LateDaemon(devices[0])
    with holder:
        daemon.late = True
        with pytest.raises(DeviceError, match="does not answer"):
            holder.hold(watts(150.0), "job-1-1")
        assert daemon.asked_w == [150.0, 300.0]
        assert recorded_gpus(tmp_path / "gpus") == [devices[0].uuid]
    assert "zeusrun repair" in holder.unrestored
    daemon.catch_up()
    assert devices[0].power_limit_w() == 300.0
    daemon.late = False
    repair(devices, tmp_path / "gpus")
    assert recorded_gpus(tmp_path / "gpus") == []


def test_a_limit_found_that_is_asked_for_in_vain_is_asked_for_again(devices, holder, tmp_path):
    daemon = LateDaemon(devices[0])
    with holder:
        daemon.late = True
        with pytest.raises(DeviceError, match="does not answer"):
            holder.hold(watts(150.0), "job-1-1")
        daemon.late = False
        holder.restore()
    assert devices[0].power_limit_w() == 300.0
    assert holder.unrestored is None
    assert recorded_gpus(tmp_path / "gpus") == []


@pytest.mark.parametrize(("in_force_w", "left"), [(287.5, 0), (150.0, 1)])
def test_without_permission_a_record_goes_only_where_nothing_is_left_to_do(
    devices, tmp_path, in_force_w, left
):
    record = LimitRecord(devices[0].uuid, 287.5, "dead-1-1", set_w=(150.0,))
    write_record(tmp_path, record)
    devices[0].set_power_limit_w(in_force_w)
    devices[0].refuse_limits()
    _, problems, _ = repair(devices, tmp_path)
    assert (len(problems), len(recorded_gpus(tmp_path))) == (left, left)


def test_a_cap_set_while_the_first_limit_is_prepared_is_not_overridden(
    devices, original_w, tmp_path
):
    guard = NoGuard()

    def start_guard(found, descriptors):
        devices[0].set_power_limit_w(120.0)
        return guard(found, descriptors)

    holder = LimitHolder(devices, tmp_path, start_guard)
    with holder:
        with pytest.raises(LimitRefusedError, match="stays at 120 W"):
            holder.hold(watts(150.0), "job-1-1")
        assert "stays at 120 W" in holder.taken
    assert limits_w(devices) == {**original_w, devices[0].uuid: 120.0}
    assert recorded_gpus(tmp_path) == []


def test_what_a_driver_sets_instead_is_on_disk(devices, holder, guard, tmp_path):
    uuid, change = devices[0].uuid, devices[0].set_power_limit_w

    def clamp_and_stick(watts):
        if watts == 300.0 and devices[0].power_limit_w() != 300.0:
            raise DeviceError("not now")
        change(max(watts, 210.0))

    devices[0].set_power_limit_w = clamp_and_stick
    with holder, pytest.raises(DeviceError, match="not now"):
        holder.hold(watts(150.0), "job-1-1")
    assert read_record(tmp_path / "gpus", uuid).set_w == (150.0, 210.0)
    devices[0].set_power_limit_w = change
    (restored,), _, _ = repair(devices, tmp_path / "gpus")
    assert "restored to 300 W" in restored.text


@pytest.mark.parametrize(
    ("lowest_w", "highest_w", "expected"),
    [
        (100, 250, (100, 125, 150, 175, 200, 225, 250)),  # V100
        (125, 250, (125, 150, 175, 200, 225, 250)),  # P100
        (100, 300, (100, 125, 150, 175, 200, 225, 250, 275, 300)),  # A40
        (200, 700, (200, 250, 300, 350, 400, 450, 500, 550, 600, 650, 700)),  # H100 and H200
        (100, 400, (100, 150, 200, 250, 300, 350, 400)),  # A100
        (100, 312.345, (100, 125, 150, 175, 200, 225, 250, 275, 312.345)),
        (1, 15, (1, 5, 10, 15)),
        (250, 250, (250,)),
        (100, 90, (90,)),
    ],
)
def test_the_limits_to_try_cover_the_range(lowest_w, highest_w, expected):
    assert limit_grid_w(lowest_w, highest_w) == expected


def test_a_limit_above_the_one_found_is_not_tried(devices, holder):
    with holder:
        assert holder.levers[0] == watts(100.0)
        assert holder.levers[-1] == watts(212.345)
