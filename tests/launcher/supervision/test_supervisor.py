"""In which order a training is started, looked after and ended."""

from __future__ import annotations

import contextlib
from collections import deque
from types import SimpleNamespace

import pytest

from tests.launcher.values import LAUNCHED
from zeusrun.launcher.events import BoundChanged, Messages, Noted, Warned
from zeusrun.launcher.supervision.stopping import StopOrder
from zeusrun.launcher.supervision.supervisor import (
    Supervised,
    _ask_policy,
    _describe,
    _hear_nodes,
    start_ranks,
)
from zeusrun.reasons import ReasonCode
from zeusrun.sidecar.events import Applied, Regrouped, Synced
from zeusrun.trial import Bound, Decision, Stage


@pytest.mark.parametrize(
    ("on_cpu", "on_gpus", "elsewhere", "shared"),
    [
        (None, False, [], False),
        (None, True, [], True),
        (True, False, [], True),  # of a job on the CPU, its neighbours decide
        (False, True, [], False),
        (None, None, [], None),
        (None, False, [True], True),
        (None, False, [None], None),
        (None, None, [True], True),
        (None, False, [False], False),
    ],
)
def test_a_run_was_shared_if_it_was_on_one_host_and_unknown_if_one_does_not_know(
    on_cpu, on_gpus, elsewhere, shared
):
    run = SimpleNamespace(
        neighbours=SimpleNamespace(shared=on_cpu),
        meter=SimpleNamespace(shared=on_gpus),
        submission=SimpleNamespace(nodes=[SimpleNamespace(shared=each) for each in elsewhere]),
    )
    assert Supervised.shared.fget(run) is shared


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Regrouped(1.0, 1, (0, 1), "it starts"), None),
        (Regrouped(1.0, 2, (0, 1), "one came"), "2 ranks: one came"),
        (Regrouped(1.0, 2, (0,), "one left"), "1 rank: one left"),
        (Synced(1.0, 5, "bf16", "the network is slow"), "sync bf16: the network is slow"),
        (Synced(1.0, 5, "bf16", "", problem="it raised"), None),
        (
            Applied(1.0, "batch_size", 32, 64, "train.py:4"),
            "train.py:4: batch size of each rank changed from 32 to 64",
        ),
    ],
)
def test_what_changes_in_a_training_is_told(event, text):
    assert _describe(event) == text


def test_what_the_launchers_of_other_hosts_say_is_told_once_and_their_signals_end_the_run():
    ended, said = [], []
    node = SimpleNamespace(name="b", notices=deque(["full", "full"]), signals=deque([15]))
    run = SimpleNamespace(
        submission=SimpleNamespace(
            allocation=SimpleNamespace(check_sentinel=lambda: "its time ends"), nodes=[node]
        ),
        stopping=SimpleNamespace(take_signal=ended.append),
        messages=Messages(said.append),
    )
    _hear_nodes(run)
    assert ended == ["its time ends", "SIGTERM to the launcher of host b"]
    assert said == [Warned("full")]
    run.submission.allocation, ended[:] = None, []
    _hear_nodes(run)
    assert ended == []


CHECKED, HOPELESS = (
    StopOrder(cause, "because") for cause in (ReasonCode.SPEED_CHECKED, ReasonCode.HOPELESS)
)
GOES_ON = Decision(32, Stage.EXPLORE, "it is fast", bound=Bound(7.0))


@pytest.mark.parametrize(
    ("changes", "order", "said"),
    [
        ({}, HOPELESS, []),
        ({"epoch": False}, None, []),
        ({"final": True}, None, []),
        ({"may_ask": False}, None, []),
        ({"speed": CHECKED}, CHECKED, []),
        (
            {"speed": GOES_ON},
            *(
                HOPELESS,
                [BoundChanged(7.0), Noted("its speed is known, and it continues: it is fast")],
            ),
        ),
    ],
)
def test_the_policy_is_asked_of_the_speed_and_at_the_end_of_an_epoch(changes, order, said):
    values = {"epoch": True, "final": False, "may_ask": True, "speed": None, **changes}
    events, bounds = [], []
    run = SimpleNamespace(
        stopping=SimpleNamespace(
            may_ask_policy=values["may_ask"], policy_order=None, bound=bounds.append
        ),
        policy=SimpleNamespace(
            check_speed=lambda _progress, _levers: values["speed"],
            review=lambda _progress: HOPELESS,
        ),
        limits=SimpleNamespace(stepped_under=()),
        messages=Messages(events.append),
    )
    _ask_policy(run, LAUNCHED, epoch=values["epoch"], final=values["final"])
    assert (run.stopping.policy_order, events) == (order, said)
    assert bounds == [7.0] * bool(said)


def test_the_limits_are_restored_before_the_last_processes_are_ended():
    done = []

    @contextlib.contextmanager
    def run_ranks(_command, _grace_period_s, _others):
        done.append("started")
        yield
        done.append("ended")

    run = SimpleNamespace(
        begun=SimpleNamespace(
            trial=SimpleNamespace(world_size=1),
            paths=None,
            choice=SimpleNamespace(largest_that_fits=None),
        ),
        submission=SimpleNamespace(
            commands=lambda *_: (None,),
            spec=SimpleNamespace(launch=SimpleNamespace(grace_period_s=2.0), elastic=None),
        ),
        limits=SimpleNamespace(
            begin=lambda: done.append("held"), restore=lambda: done.append("restored")
        ),
        meter=contextlib.nullcontext(),
        ranks=SimpleNamespace(run=run_ranks),
        progress=LAUNCHED,
    )
    with start_ranks(run):
        done.append("trained")
    assert done == ["held", "started", "trained", "restored", "ended"]
