"""In which order a training is started, looked after and ended."""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.launcher.values import GOAL, LAUNCHED, METERED, after, ended, report, started
from zeusrun.launcher.events import Advanced, BoundChanged, Messages, Noted, Printed, Warned
from zeusrun.launcher.processes.torchrun import StopLevel
from zeusrun.launcher.rundir.layout import create_run, read_live
from zeusrun.launcher.supervision.agent import Agent
from zeusrun.launcher.supervision.control import RunControl
from zeusrun.launcher.supervision.live_file import write_live_file
from zeusrun.launcher.supervision.neighbours import CpuSharing
from zeusrun.launcher.supervision.output import Output, describe
from zeusrun.launcher.supervision.stopping import StopOrder
from zeusrun.launcher.supervision.supervised import LastLive, PollResult, Supervised
from zeusrun.launcher.supervision.supervisor import _observe, start_ranks
from zeusrun.lever import power_lever
from zeusrun.reasons import ReasonCode, Stall
from zeusrun.redaction import Mask
from zeusrun.sidecar.events import Applied, Regrouped, Spawned, Synced
from zeusrun.tariff import Tariffs, from_points
from zeusrun.trial import Bound, Decision, Stage, TrialStatus


def make_control(**parts):
    """Return the control of a run, with stand-ins for the objects that it uses."""
    control = object.__new__(RunControl)
    vars(control).update(parts)
    return control


@pytest.mark.parametrize(
    ("here", "elsewhere", "shared"),
    [
        (False, [], False),
        (True, [], True),
        (None, [], None),
        (False, [True], True),
        (False, [None], None),
        (None, [True], True),
        (False, [False], False),
    ],
)
def test_a_run_was_shared_if_it_was_on_one_host_and_unknown_if_one_does_not_know(
    here, elsewhere, shared
):
    run = SimpleNamespace(
        meter=SimpleNamespace(shared=here),
        submission=SimpleNamespace(nodes=[SimpleNamespace(shared=each) for each in elsewhere]),
    )
    assert Supervised.shared.fget(run) is shared


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Regrouped(1.0, 2, (0, 1), "one came"), None),  # the part says so
        (Synced(1.0, 5, "bf16", "the network is slow"), "sync bf16: the network is slow"),
        (Synced(1.0, 5, "bf16", "", problem="it raised"), None),
        (
            Applied(1.0, "batch_size", 32, 64, "train.py:4"),
            "train.py:4: batch size of each rank changed from 32 to 64",
        ),
    ],
)
def test_what_changes_in_a_training_is_told(event, text):
    assert describe(event) == text


def test_what_the_launchers_of_other_hosts_say_is_told_once_and_their_signals_end_the_run():
    ended, said = [], []
    node = SimpleNamespace(name="b", notices=deque(["full", "full"]), signals=deque([15]))
    control = make_control(
        _submission=SimpleNamespace(
            allocation=SimpleNamespace(check_sentinel=lambda: "its time ends"), nodes=[node]
        ),
        stopping=SimpleNamespace(take_signal=ended.append),
        _messages=Messages(said.append),
    )
    control.hear_nodes()
    assert ended == ["its time ends", "SIGTERM to the launcher of host b"]
    assert said == [Warned("full")]
    control._submission.allocation, ended[:] = None, []
    control.hear_nodes()
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
        ({"may_ask": False}, None, []),
        ({"speed": CHECKED}, CHECKED, []),
        (
            {"speed": GOES_ON},
            *(
                HOPELESS,
                [
                    BoundChanged(7.0),
                    Noted("the speed is now known, and the run continues: it is fast"),
                ],
            ),
        ),
    ],
)
def test_the_policy_is_asked_of_the_speed_and_at_the_end_of_an_epoch(changes, order, said):
    values = {"epoch": True, "may_ask": True, "speed": None, **changes}
    events, bounds = [], []
    control = make_control(
        stopping=SimpleNamespace(
            may_ask_policy=values["may_ask"], policy_order=None, bound=bounds.append
        ),
        policy=SimpleNamespace(
            check_speed=lambda _progress, _levers: values["speed"],
            review=lambda _progress: HOPELESS,
        ),
        limits=SimpleNamespace(stepped_under=()),
        _messages=Messages(events.append),
    )
    control.ask_policy(LAUNCHED, epoch=values["epoch"])
    assert (control.stopping.policy_order, events) == (order, said)
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
            choice=SimpleNamespace(largest_that_fits=None, earlier=()),
        ),
        submission=SimpleNamespace(
            commands=lambda *_: (None,),
            spec=SimpleNamespace(launch=SimpleNamespace(grace_period_s=2.0), parts={}),
        ),
        control=SimpleNamespace(
            limits=SimpleNamespace(
                begin=lambda: done.append("held"), restore=lambda: done.append("restored")
            )
        ),
        open_parts=contextlib.nullcontext,
        meter=contextlib.nullcontext(),
        ranks=SimpleNamespace(run=run_ranks),
        progress=LAUNCHED,
    )
    with start_ranks(run):
        done.append("trained")
    assert done == ["held", "started", "trained", "restored", "ended"]


class Asked(Agent):
    def __init__(self, asked):
        self.advance = lambda progress: asked.append(progress.ranks)


@pytest.mark.parametrize("order", [None, StopOrder(ReasonCode.HOPELESS, "because")])
def test_a_stall_is_looked_for_once_it_is_decided_whether_the_run_ends(order):
    asked = []
    stopping = SimpleNamespace(order=None)
    stopping.decide = lambda *_: vars(stopping).update(order=order) or StopLevel.KILL
    control = make_control(
        stopping=stopping,
        stalls=SimpleNamespace(describe_pause=lambda: None, advance=asked.append),
        limits=SimpleNamespace(wind_down=lambda **_: None),
        _ranks=SimpleNamespace(step=lambda _level: False),
    )
    assert not control.step(LAUNCHED)
    assert [progress.ending for progress in asked] == [order is not None]


TRAINS = after(started(103.0), report(105.0, 1, 0.1))


@pytest.fixture
def run(tmp_path):
    """A run that has trained for an epoch, with what its parts were asked and what it showed."""
    run = object.__new__(Supervised)
    run.events, run.asked = [], []
    run.begun = SimpleNamespace(
        trial=GOAL, paths=create_run(tmp_path, "job", "job-1-1"), mask=Mask(("s3cret",)),
        messages=Messages(run.events.append, ["a token: s3cret"]),
    )  # fmt: skip
    run.submission = SimpleNamespace(
        allocation=None, nodes=(), tariffs=Tariffs(from_points([(0.0, 0.5), (9e9, 0.5)]), "EUR")
    )
    run.meter = replace(METERED, limit_w=lambda *_: 250.0)
    vars(run.meter)["shared"] = False
    run.control = make_control(
        _submission=run.submission,
        _max_epochs=GOAL.max_epochs,
        stopping=SimpleNamespace(order=None, may_ask_policy=True, preempted=False),
        limits=SimpleNamespace(held=power_lever(250.0), probing=True, stepped_under=()),
        policy=SimpleNamespace(
            check_speed=lambda *_: run.asked.append("speed"),
            review=lambda _: run.asked.append("epoch"),
        ),
        stalls=SimpleNamespace(found=(), take=run.asked.append),
    )
    neighbours = SimpleNamespace(
        check=lambda _now_t, trains: "others train" if trains else None,
        describe_load=lambda: "others took it",
    )
    run.output = Output(run.begun.paths, [0], run.messages)
    sharing = CpuSharing(neighbours, run.messages.warn)
    run.agents = [run.control, Asked(run.asked), run.output, sharing]
    run.progress, run.live = LAUNCHED, LastLive(math.inf)
    return run


def look(run, monkeypatch, progress, *events, reported=False, final=False):
    """Let a run take in what was read; return its progress."""
    clock = SimpleNamespace(monotonic=lambda: 110.0)
    monkeypatch.setattr("zeusrun.launcher.supervision.supervisor.time", clock)
    found = PollResult(progress, list(events), reported)
    run.observer = SimpleNamespace(observe=lambda *_, final: found)
    _observe(run, final=final)
    return run.progress


def test_what_is_read_of_a_training_is_given_to_its_parts_and_shown(run, monkeypatch):
    newcomer, regrouped = started(106.0, 1), Regrouped(107.0, 2, (0, 1), "one came")
    found = look(run, monkeypatch, TRAINS, newcomer, started(106.0), regrouped, reported=True)
    assert (found.now_t, found.energy_j, found.power_w) == (110.0, pytest.approx(69.0), 10.0)
    assert (found.power_limit_w, found.probing, found.ending) == (250.0, True, False)
    assert sorted(run.output.tails) == [0, 1]
    assert run.asked[:3] == [newcomer, started(106.0), regrouped]
    assert run.asked[3:] == ["speed", "epoch", found.ranks]
    assert run.events == [Warned("others train"), Advanced(found)]
    look(run, monkeypatch, TRAINS)
    assert run.asked[-2:] == ["speed", found.ranks]


@pytest.mark.parametrize("trains", [True, False])
def test_others_are_looked_for_once_a_process_of_the_script_trains(run, monkeypatch, trains):
    """Its steps may be hidden until the first report, which may be the last line."""
    events = [started(103.0), *([Spawned(104.0, 7)] if trains else [])]
    look(run, monkeypatch, after(*events))
    assert (Warned("others train") in run.events) == trains


def test_lines_of_a_rank_are_shown_once_and_what_is_left_of_one_at_the_end(run, monkeypatch):
    run.output.tails[0].path.write_text("one\nha")
    look(run, monkeypatch, TRAINS)
    look(run, monkeypatch, TRAINS, started(106.0))  # the ranks have been restarted
    assert [each for each in run.events if isinstance(each, Printed)] == [Printed(0, ("one",))]
    assert look(run, monkeypatch, TRAINS, final=True).energy_j is None  # the outcome says it
    assert Printed(0, ("ha",)) in run.events
    assert Warned("others took it") in run.events
    run.output.tails[0].path.write_text((99 * "x" + "\n") * 4000)  # too many to be printed in time
    look(run, monkeypatch, TRAINS)
    assert [each.text[:20] for each in run.events if isinstance(each, Noted)] == [
        "0.1 MB of rank 0 are"
    ]


def test_before_it_trains_and_once_ranks_have_ended_less_is_asked(run, monkeypatch):
    assert look(run, monkeypatch, LAUNCHED).energy_j is None
    assert "speed" not in run.asked
    assert Warned("others train") not in run.events
    look(run, monkeypatch, after(ended(108.0), start=TRAINS))
    assert Warned("others train") not in run.events
    once = replace(LAUNCHED, epochs=1)
    look(run, monkeypatch, once, reported=True)
    assert run.asked[-3:-1] == ["speed", "epoch"]


@pytest.mark.parametrize("level", [None, StopLevel.ASK, StopLevel.TERMINATE])
def test_a_target_may_be_taken_back_until_the_ranks_are_ended_for_it(run, monkeypatch, level):
    run.progress = reached = after(report(106.0, 2, 0.9), start=TRAINS)
    if level is not None:
        run.control.stopping.order = StopOrder(ReasonCode.TARGET_REACHED, "", level)
    found = look(run, monkeypatch, TRAINS)
    assert found.reached == (reached.reached if level is StopLevel.TERMINATE else None)
    assert found.ending is (level is not None)
    assert look(run, monkeypatch, replace(TRAINS, epochs=5)).ending
    run.progress = TRAINS
    assert look(run, monkeypatch, reached).reached == reached.reached


def test_the_state_is_written_each_second_and_at_what_matters_with_the_price_so_far(run):
    now = replace(TRAINS, now_t=110.0, energy_j=3.6e6, power_w=7.0)
    run.progress = now
    for due_at_t in (110.1, 110.0):
        run.live = LastLive(due_at_t)
        found = write_live_file(run, now, final=False)
        assert (found.price, found.currency) == ((None, None), (0.5, "EUR"))[due_at_t == 110.0]
    assert run.live.due_at_t == 111.0
    later = replace(now, now_t=110.5)
    assert write_live_file(run, later, final=False).price is None
    assert write_live_file(run, later, final=True).price == 0.5
    epoch = replace(later, curve=after(report(107.0, 2, 0.2), start=TRAINS).curve)
    assert write_live_file(run, epoch, final=False).price == 0.5
    run.control.stopping.order = HOPELESS
    assert write_live_file(run, later, final=False).price == 0.5
    assert write_live_file(run, later, final=False).price is None


def test_the_state_on_disk_is_that_of_a_run_which_goes_on(run):
    run.control.stalls.found = (Stall(2.0, 1.0, "", "in s3cret.py"),)
    run.control.stopping.preempted = True
    write_live_file(run, replace(TRAINS, now_t=110.0, energy_j=70.0, power_w=7.0), final=True)
    live = read_live(run.begun.paths)
    assert (live.pid, live.power_w, live.preempted) == (os.getpid(), 7.0, True)
    trial = live.trial
    assert (trial.status, trial.reason, trial.finished_at) == (TrialStatus.DISPATCHED, None, None)
    assert (trial.power_limit_w, trial.shared, trial.energy_j) == (250.0, False, 70.0)
    assert (trial.warnings, trial.stalls[0].places) == (("a token: ***",), "in ***.py")
    run.begun.trial = replace(GOAL, host="elsewhere")
    write_live_file(run, LAUNCHED, final=True)
    live = read_live(run.begun.paths)
    assert (live.host, live.trial.power_limit_w) == ("elsewhere", None)
