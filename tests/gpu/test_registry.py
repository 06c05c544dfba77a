"""Devices of another vendor, which an installed package finds, and their power limits."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path

import psutil
import pytest

from tests.contracts.device import LimitableDeviceContract
from tests.factories import FAKE_TORCHRUN
from tests.runs import has_ended, wait_for
from zeusrun.errors import DeviceError
from zeusrun.gpu.registry import open_device

VENDOR = '''
"""The accelerators of a vendor: two, whose limits its driver keeps in a file."""

import json
import time
from pathlib import Path

from zeusrun.energy.device import Health, Reading, check_power_limit
from zeusrun.errors import DeviceError
from zeusrun.trial import EnergySource


class Accelerator:
    is_gpu = True
    model = "Other X1"
    max_power_w = 500.0
    energy_source = EnergySource.COUNTER
    caveat = None

    def __init__(self, driver, uuid):
        self._driver, self.uuid = driver, uuid

    def _limits(self):
        try:
            return json.loads(self._driver.read_text())
        except OSError as error:
            raise DeviceError(f"the driver of {self.uuid} does not answer") from error

    def compute_processes(self):
        return frozenset()

    def read(self):
        limit_w = self.power_limit_w()
        return Reading(100.0 * time.monotonic(), 100.0, limit_w, Health())

    def power_limit_range_w(self):
        return (100.0, 500.0)

    def power_limit_w(self):
        return self._limits()[self.uuid]

    def set_power_limit_w(self, watts):
        check_power_limit(self.uuid, watts, self.power_limit_range_w())
        changed = self._driver.with_suffix(".new")
        changed.write_text(json.dumps({**self._limits(), self.uuid: watts}))
        changed.replace(self._driver)

    def close(self):
        pass


def devices(environment):
    driver = Path(environment["OTHER_VENDOR_DRIVER"])
    return [Accelerator(driver, uuid) for uuid in json.loads(driver.read_text())]
'''
FOUND_W = 432.5


class OtherVendor:
    """A machine with two accelerators, and the package that finds them."""

    def __init__(self, folder):
        self.site = folder / "site-packages"
        self.install("other-vendor", "x1 = other_vendor:devices", "other_vendor", VENDOR)
        serial = secrets.randbelow(10**7)  # locks are the machine's
        self.uuids = [f"X1-{number}-{serial:07d}" for number in range(2)]
        self.driver = folder / "driver.json"
        self.driver.write_text(json.dumps(dict.fromkeys(self.uuids, FOUND_W)))
        self.variables = {
            "PYTHONPATH": f"{FAKE_TORCHRUN}:{self.site}",
            "OTHER_VENDOR_DRIVER": str(self.driver),
        }

    def install(self, package, entry_point, module, text):
        metadata = self.site / f"{package.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        (metadata / "entry_points.txt").write_text(f"[zeusrun.devices]\n{entry_point}\n")
        (self.site / f"{module}.py").write_text(text)

    def limits_w(self):
        return [*json.loads(self.driver.read_text()).values()]


@pytest.fixture
def vendor(tmp_path):
    return OtherVendor(tmp_path)


@pytest.fixture
def imported(vendor, monkeypatch):
    """The vendor's package, in this process."""
    monkeypatch.syspath_prepend(str(vendor.site))
    monkeypatch.delitem(sys.modules, "other_vendor", raising=False)
    return vendor


class TestAnotherVendor(LimitableDeviceContract):
    @pytest.fixture
    def device(self, imported):
        return open_device(imported.uuids[1], imported.variables)

    @pytest.fixture
    def work(self):
        return lambda: None

    @pytest.fixture
    def lose(self, imported, device):
        return imported.driver.unlink


def test_what_no_plugin_finds_is_an_error_that_names_who_was_asked(imported):
    with pytest.raises(DeviceError, match=r"X1-9 is not in this machine.*; the plugin 'x1' does"):
        open_device("X1-9", imported.variables)


def test_a_plugin_that_fails_does_not_hide_the_device_of_another(imported):
    imported.install("a-broken-vendor", "a = broken_vendor:devices", "broken_vendor", "oops")
    assert open_device(imported.uuids[0], imported.variables).uuid == imported.uuids[0]
    with pytest.raises(DeviceError, match=r"the plugin 'a' .* failed: NameError"):
        open_device("X1-9", imported.variables)


@pytest.fixture
def held(zeusrun, vendor):
    """Start a submit that holds 200 W on both accelerators."""
    job = zeusrun.job(
        args=["--epoch-s", "30"],
        launch={"nproc_per_node": "x1"},
        power_limit={"mode": "fixed", "watts": 200},
    )
    process = zeusrun.start("submit", job, **vendor.variables)
    wait_for(lambda: vendor.limits_w() == [200.0, 200.0], what="the limit")
    wait_for(lambda: list((zeusrun.home / "runs").glob("*/*/metrics.jsonl")), what="a training")
    return process


def records(zeusrun):
    return list((zeusrun.home / "gpus").glob("*.json"))


def guards(zeusrun):
    found = psutil.process_iter(["cmdline"])
    lines = [(each, " ".join(each.info["cmdline"] or [])) for each in found]
    return [
        each
        for each, line in lines
        if "zeusrun.gpu.power_limits.guard" in line and str(zeusrun.home) in line
    ]


def test_a_fixed_limit_is_held_and_restored_at_the_end(zeusrun, vendor):
    job = zeusrun.job(launch={"nproc_per_node": "x1"}, power_limit={"mode": "fixed", "watts": 200})
    done = zeusrun("submit", job, "--json", **vendor.variables)
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads(done.stdout.splitlines()[-1])["trials"]
    assert (trial["gpu_model"], trial["power_limit_w"]) == ("Other X1", 200.0)
    assert "\n" in (Path(trial["run_dir"]) / "power.csv").read_text()
    assert (vendor.limits_w(), records(zeusrun)) == ([FOUND_W, FOUND_W], [])


def test_after_sigkill_of_the_launcher_the_guard_restores_the_limits(zeusrun, vendor, held):
    assert len(records(zeusrun)) == 2
    (guard,) = guards(zeusrun)
    held.kill()
    wait_for(lambda: vendor.limits_w() == [FOUND_W, FOUND_W], what="the limits found")
    wait_for(lambda: has_ended(guard.pid), what="the end of the guard")
    assert records(zeusrun) == []


@pytest.mark.long  # the short tier opens such a device in the guard, and repairs limits of NVML
def test_when_the_guard_dies_too_repair_restores_the_limits(zeusrun, vendor, held):
    (guard,) = guards(zeusrun)
    psutil.Process(held.pid).suspend()
    guard.kill()
    held.kill()
    held.wait()
    assert vendor.limits_w() == [200.0, 200.0]
    done = zeusrun("repair", **vendor.variables)
    assert (done.returncode, vendor.limits_w()) == (0, [FOUND_W, FOUND_W]), done.stderr
    assert records(zeusrun) == []
