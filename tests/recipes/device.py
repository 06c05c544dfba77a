"""A kind of device: two cards of 50 W each."""

from __future__ import annotations

from zeusrun.energy.device import Reading
from zeusrun.trial import EnergySource


class Card:
    """Draws 50 W."""

    is_gpu, caveat, max_power_w = False, None, 100.0
    energy_source = EnergySource.INTEGRATED

    def __init__(self, number):
        self.uuid, self.model = f"card-{number}", "a card"

    def compute_processes(self):
        return None

    def read(self):
        return Reading(energy_j=None, power_w=50.0, power_limit_w=None)

    def close(self):
        pass


def find(environment):
    del environment
    return [Card(0), Card(1)]
