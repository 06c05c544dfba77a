"""What ``doctor`` finds, and what it says to do."""

from __future__ import annotations

import errno
import platform
import secrets
import socket
import sys

import pytest

from tests.gpu import fixtures
from tests.gpu.simulated import SimulatedDevice
from zeusrun.errors import LaunchError, VisibleGpusError
from zeusrun.gpu.power_limits.original_limits import LimitLock, LimitRecord, is_held, write_record
from zeusrun.launcher.processes.command import Torchrun
from zeusrun.maintenance import doctor
from zeusrun.maintenance.doctor import check_machine

clock = fixtures.clock


@pytest.fixture
def environment(tmp_path):
    return {"ZEUSRUN_HOME": str(tmp_path / "home"), "CUDA_VISIBLE_DEVICES": ""}


def found(environment):
    return {check.name: check for check in check_machine(environment)}


def test_the_checks_come_in_the_order_in_which_a_submit_needs_them(environment):
    names = [check.name for check in check_machine(environment)]
    assert names == ["python", "torch", "devices", "permissions", "home"]


def test_this_machine_is_well(environment):
    checks = found(environment)
    assert not [check for check in checks.values() if check.well is False]
    assert platform.python_version() in checks["python"].found
    assert sys.executable in checks["python"].found
    assert checks["home"].found == environment["ZEUSRUN_HOME"]


def test_what_is_not_well_says_what_to_do(environment):
    for check in check_machine(environment):
        assert check.found
        assert check.well is not None or check.advice or check.name == "permissions"


def test_a_home_that_cannot_be_written_is_not_well(environment, tmp_path):
    (tmp_path / "home").touch()
    home = found(environment)["home"]
    assert home.well is False
    assert "ZEUSRUN_HOME" in home.found + home.advice


def test_no_trace_is_left_in_the_home(environment, tmp_path):
    (tmp_path / "home").mkdir()
    check_machine(environment)
    assert list((tmp_path / "home").iterdir()) == []


def test_a_missing_torch_is_not_well_and_the_rest_is_checked_all_the_same(environment, monkeypatch):
    def missing():
        raise LaunchError("torch is not installed; install it")

    monkeypatch.setattr(doctor, "find_torchrun", missing)
    checks = found(environment)
    assert checks["torch"].well is False
    assert "install it" in checks["torch"].found
    assert checks["home"].well is True


@pytest.mark.parametrize(
    ("version", "well"), [("2.3.1+cu121", None), ("2.4.0a0+f70bd71a48", True), ("unknown", True)]
)
def test_a_torch_that_is_too_old_is_named(environment, monkeypatch, version, well):
    monkeypatch.setattr(doctor, "find_torchrun", lambda: Torchrun((), version, frozenset()))
    torch = found(environment)["torch"]
    assert (torch.well, torch.found) == (well, version)
    assert ("2.4 or later" in torch.advice) is (well is None)


def test_a_host_name_that_does_not_resolve_is_not_well(environment, monkeypatch):
    def refuse(*_):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    assert "host" not in found(environment)
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    host = found(environment)["host"]
    assert (host.well, host.advice) == (False, "add a line to /etc/hosts: 127.0.1.1 node7")


def test_a_bad_setting_of_the_machine_is_not_well(environment):
    environment["ZEUSRUN_CPU_WATTS_PER_CORE"] = "many"
    devices = found(environment)["devices"]
    assert devices.well is False
    assert "ZEUSRUN_CPU_WATTS_PER_CORE" in devices.found


def test_notices_that_wait_to_be_delivered_are_told(tmp_path):
    folder = tmp_path / "notices"
    folder.mkdir()
    environment = {"ZEUSRUN_HOME": str(tmp_path)}
    assert "notices" not in {check.name for check in check_machine(environment)}
    (folder / "1.json").write_text("{}")
    found = {check.name: check for check in check_machine(environment)}["notices"]
    assert (found.well, found.found) == (None, "1 notice could not be delivered so far")
    assert found.advice.endswith("notices/failed.log")


@pytest.fixture
def gpu(clock, monkeypatch):
    """A GPU held to 250 W, and every limit that is set on it."""
    device = SimulatedDevice(clock, uuid=f"GPU-{secrets.token_hex(4)}")  # locks are the machine's
    device.set_power_limit_w(250.0)
    device.asked_w = []
    change = device.set_power_limit_w
    device.set_power_limit_w = lambda watts: device.asked_w.append(watts) or change(watts)
    monkeypatch.setattr(doctor, "gpus_of_job", lambda *_: [device])
    return device


def test_whether_limits_may_be_set_is_asked_by_setting_what_is_set(environment, gpu):
    permissions = found(environment)["permissions"]
    assert (permissions.well, permissions.found) == (True, "power limits may be set")
    assert gpu.asked_w == [250.0]


def test_where_limits_may_not_be_set_it_says_so_and_why(environment, gpu):
    gpu.refuse_limits()
    permissions = found(environment)["permissions"]
    assert (permissions.well, permissions.found) == (None, "power limits are only observed")
    assert "was told to refuse power limits" in permissions.advice


def test_a_limit_that_a_run_holds_is_left_to_it(environment, gpu, tmp_path):
    directory = tmp_path / "home" / "gpus"
    run = LimitLock(gpu.uuid, directory)
    assert run.acquire()
    write_record(directory, LimitRecord(gpu.uuid, 300.0, "job-1-1"))
    checks = found(environment)
    assert checks["permissions"].well is None
    assert "a run holds the power limits" in checks["permissions"].found
    assert "power limit" not in checks
    assert gpu.asked_w == []
    run.release()
    assert found(environment)["power limit"].well is False


def test_no_run_can_change_a_limit_while_it_is_asked_for(environment, gpu, tmp_path):
    change, free = gpu.set_power_limit_w, []

    def spy(watts):
        free.append(LimitLock(gpu.uuid, tmp_path / "home" / "gpus").acquire())
        change(watts)

    gpu.set_power_limit_w = spy
    found(environment)
    assert free == [False]
    assert not is_held(gpu.uuid, tmp_path / "home" / "gpus")


def test_a_variable_that_is_not_usable_does_not_turn_a_machine_into_one_without_gpus(
    environment, monkeypatch
):
    def refuse(*_):
        raise VisibleGpusError("'garbage' is neither an index nor a UUID")

    monkeypatch.setattr(doctor, "gpus_of_job", refuse)
    checks = [check for check in check_machine(environment) if check.name == "devices"]
    assert [check.well for check in checks] == [False]


def test_a_home_without_locks_is_not_well(environment, monkeypatch):
    def refuse(_descriptor, _operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("zeusrun.files.lock.fcntl.flock", refuse)
    home = found(environment)["home"]
    assert (home.well, "No locks available" in home.found) == (False, True)
    assert "has no locks" in home.advice


def test_a_home_whose_locks_keep_nobody_out_is_not_well(environment, monkeypatch):
    monkeypatch.setattr("zeusrun.files.lock.fcntl.flock", lambda _descriptor, _operation: None)
    home = found(environment)["home"]
    assert (home.well, "gives one lock to two holders" in home.found) == (False, True)


def test_a_full_disk_is_named(environment, monkeypatch):
    def refuse(_descriptor, _operation):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("zeusrun.files.lock.fcntl.flock", refuse)
    assert found(environment)["home"].advice == "free some space on that disk"


def test_a_home_that_others_may_write_is_not_well(environment, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o777)
    home = found(environment)["home"]
    assert (home.well, "chmod go-w" in home.found) == (False, True)
