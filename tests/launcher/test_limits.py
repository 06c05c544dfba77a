"""Which power limits a submit holds, and what it says of those that it does not."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from tests.factories import load_job
from zeusrun.errors import DeviceError
from zeusrun.launcher import context
from zeusrun.launcher.context import Submission, holding_limits
from zeusrun.launcher.events import Noted, Warned


class Holder(contextlib.nullcontext):
    """Holds limits as a ``LimitHolder`` does."""

    refused = unrestored = None

    def __enter__(self):
        return self

    def check(self, lever):
        self.checked = lever


class Joined(Holder):
    """Holds the limits of several hosts."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = parts


def hold(monkeypatch, folder, power_limit, holder, *, caveat=None, cluster=None, gpus=1, others=0):
    """Return the mode with which limits are opened, what is held, and what is said."""
    modes, said = [], []
    monkeypatch.setattr(
        "zeusrun.launcher.power.control.open_limits",
        lambda mode, *_arguments: modes.append(mode) or holder,
    )
    monkeypatch.setattr(context, "LimitableDevice", SimpleNamespace)
    devices = [SimpleNamespace(caveat=caveat, is_gpu=True)] * gpus
    submission = Submission(
        spec=load_job(folder, power_limit=power_limit), history=None, policy=None, torchrun=None,
        devices=[*devices, *[SimpleNamespace(is_gpu=False)] * others], world_size=1,
        home=folder, environment={}, cluster=cluster,
    )  # fmt: skip
    with holding_limits(submission, said.append) as held:
        pass
    return modes, held.limits, said


FIXED = {"mode": "fixed", "watts": 200}


def test_power_limits_are_held_or_it_is_said_why_not(tmp_path, monkeypatch):
    holder = Holder()
    assert hold(monkeypatch, tmp_path, {"mode": "optimize"}, holder) == (["optimize"], holder, [])
    assert hold(monkeypatch, tmp_path, FIXED, holder) == (["fixed"], holder, [])
    assert holder.checked.value == 200
    holder.refused = "no permission"
    notes = [Noted("power limits are not changed: no permission")]
    assert hold(monkeypatch, tmp_path, {"mode": "optimize"}, holder)[2] == notes
    holder.unrestored = "GPU 0 stays at 200 W"
    assert hold(monkeypatch, tmp_path, FIXED, holder)[2] == [Warned("GPU 0 stays at 200 W")]
    told = [Warned("power_limit.watts: the job has no GPU to hold to 200 W")]
    assert hold(monkeypatch, tmp_path, FIXED, None, gpus=0) == ([], None, told)
    assert hold(monkeypatch, tmp_path, {"mode": "observe"}, None) == (["observe"], None, [])


def test_the_limit_of_a_plugins_device_that_is_no_gpu_is_held(tmp_path, monkeypatch):
    holder = Holder()
    found = hold(monkeypatch, tmp_path, FIXED, holder, gpus=0, others=1)
    assert found == (["fixed"], holder, [])


def test_the_limit_of_a_gpu_that_others_share_is_left_alone(tmp_path, monkeypatch):
    modes, _, said = hold(monkeypatch, tmp_path, {"mode": "optimize"}, None, caveat="it is MIG")
    assert (modes, said) == (["observe"], [Noted("power limits are not changed: it is MIG")])
    with pytest.raises(
        DeviceError, match=r"power_limit\.watts: it is MIG; set power_limit.mode to"
    ):
        hold(monkeypatch, tmp_path, FIXED, None, caveat="it is MIG")


@pytest.mark.parametrize(
    ("mode", "gpus", "joined"),
    [("optimize", 1, True), ("observe", 1, False), ("optimize", 0, False)],
)
def test_the_limits_of_all_hosts_are_held_together(tmp_path, monkeypatch, mode, gpus, joined):
    cluster, own = SimpleNamespace(join_limits=Joined), Holder()
    _, limits, _ = hold(monkeypatch, tmp_path, {"mode": mode}, own, cluster=cluster, gpus=gpus)
    assert isinstance(limits, Joined) is joined
    own = own if gpus else None
    assert limits.parts == (own, mode) if joined else limits is own
