"""RAPL over a folder that looks like the kernel's."""

from __future__ import annotations

import pytest

from tests.contracts.device import DeviceContract
from zeusrun.energy.cpu import RaplCpu
from zeusrun.errors import DeviceError

RANGE_UJ = 1_000_000_000


class FakePowercap:
    def __init__(self, root):
        self.root = root

    def add(self, zone, name, energy_uj=0, max_power_uw=None):
        folder = self.root / zone
        folder.mkdir()
        (folder / "name").write_text(f"{name}\n", encoding="ascii")
        (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n", encoding="ascii")
        if max_power_uw is not None:
            (folder / "constraint_0_max_power_uw").write_text(f"{max_power_uw}\n", encoding="ascii")
        self.set_energy(zone, energy_uj)

    def set_energy(self, zone, energy_uj):
        (self.root / zone / "energy_uj").write_text(f"{energy_uj}\n", encoding="ascii")

    def add_energy(self, zone, energy_uj):
        path = self.root / zone / "energy_uj"
        self.set_energy(zone, (int(path.read_text(encoding="ascii")) + energy_uj) % RANGE_UJ)


@pytest.fixture
def powercap(tmp_path):
    return FakePowercap(tmp_path)


@pytest.fixture
def one_package(powercap):
    powercap.add("intel-rapl:0", "package-0", energy_uj=RANGE_UJ - 1_500_000, max_power_uw=65000000)
    return powercap


class TestRaplCpu(DeviceContract):
    @pytest.fixture
    def device(self, one_package):
        return RaplCpu("Fake CPU", root=one_package.root)

    @pytest.fixture
    def work(self, one_package):
        return lambda: one_package.add_energy("intel-rapl:0", 1_000_000)  # wraps the second time

    @pytest.fixture
    def lose(self, one_package):
        return (one_package.root / "intel-rapl:0" / "energy_uj").unlink


def test_a_counter_that_wraps_goes_on(one_package):
    device = RaplCpu("Fake CPU", root=one_package.root)
    start_j = device.read().energy_j
    for _ in range(5):
        one_package.add_energy("intel-rapl:0", RANGE_UJ // 2)
        device.read()
    assert device.read().energy_j - start_j == pytest.approx(2.5 * RANGE_UJ / 1e6)


def test_packages_are_summed_without_their_parts_and_the_whole_platform(powercap):
    powercap.add("intel-rapl:0", "package-0", 1_000_000, max_power_uw=65000000)
    powercap.add("intel-rapl:0:0", "core", 900_000)
    powercap.add("intel-rapl:1", "package-1", 2_000_000, max_power_uw=65000000)
    powercap.add("intel-rapl:2", "psys", 50_000_000)
    powercap.add("intel-rapl-mmio:0", "package-0", 1_000_000)
    device = RaplCpu("Fake CPU", root=powercap.root)
    assert device.read().energy_j == 3.0
    assert device.max_power_w == 130.0


@pytest.mark.parametrize("max_power_uw", [None, 0])
def test_where_the_kernel_tells_no_maximum_the_nominal_one_stands_in(powercap, max_power_uw):
    powercap.add("intel-rapl:0", "package-0", max_power_uw=65000000)
    powercap.add("intel-rapl:1", "package-1", max_power_uw=max_power_uw)
    assert RaplCpu("Fake CPU", root=powercap.root).max_power_w is None
    assert RaplCpu("Fake CPU", 320.0, powercap.root).max_power_w == 320.0


def test_one_unreadable_package_of_two_is_an_error_and_not_half_a_bill(powercap):
    powercap.add("intel-rapl:0", "package-0")
    powercap.add("intel-rapl:1", "package-1")
    (powercap.root / "intel-rapl:1" / "energy_uj").unlink()
    with pytest.raises(DeviceError, match="intel-rapl:1"):
        RaplCpu("Fake CPU", root=powercap.root)


def test_no_counter_is_an_error(powercap):
    with pytest.raises(DeviceError, match="no CPU package"):
        RaplCpu("Fake CPU", root=powercap.root)
