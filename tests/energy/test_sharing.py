"""When foreign processes make a run shared, look by look."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from zeusrun.energy.sharing import PERIOD_S, ForeignProcesses, Sharing

OURS = frozenset({os.getpid()})
HIM, HER, THEM = (frozenset({os.getpid() + number}) for number in (1, 2, 3))


def constantly(value):
    return lambda: value


@pytest.fixture
def look(clock, monkeypatch):
    """Let a run look at GPUs, each of which lists what is told; return what it finds at the end."""
    monkeypatch.setattr(
        ForeignProcesses, "_judge", lambda _self, pid: pid not in OURS, raising=True
    )

    def look(*looks):
        sharing = Sharing(ForeignProcesses(first_namespace=True))
        warnings = []
        for listed in looks:
            clock.advance(PERIOD_S)
            gpus = [
                SimpleNamespace(model="GPU", uuid=str(number), is_gpu=True, compute_processes=pids)
                for number, pids in enumerate(map(constantly, listed))
            ]
            warnings.append(sharing.look(gpus, clock()))
        return sharing.shared, [warning for warning in warnings if warning]

    return look


def one_gpu(*listed):
    return [(processes,) for processes in listed]


def test_another_foreign_process_at_each_look_makes_the_run_shared(look):
    shared, (told,) = look(*one_gpu(OURS, OURS | HIM, OURS | HER, OURS | THEM))
    assert shared is True
    assert f"GPUs: {min(HER)} on GPU (0)" in told


def test_a_foreign_process_at_every_other_look_makes_the_run_shared(look):
    shared, (told,) = look(*one_gpu(OURS, *[OURS | HIM, OURS] * 5))
    assert shared is True
    assert str(min(HIM)) in told


@pytest.mark.parametrize(
    "looks",
    [
        one_gpu(HIM, OURS, OURS),  # on its way out
        one_gpu(HIM | HER, OURS, OURS),
        one_gpu(HIM, OURS | HER, OURS, OURS),  # each for one look alone
        one_gpu(OURS, OURS | HIM, *[OURS] * 5, OURS | HIM, OURS),
    ],
)
def test_what_comes_and_goes_within_one_look_is_excused(look, looks):
    assert look(*looks) == (False, [])


def test_a_process_of_the_first_look_that_stays_makes_the_run_shared(look):
    shared, told = look(*one_gpu(HIM, HIM | OURS))
    assert (shared, len(told)) == (True, 1)


def test_a_gpu_that_does_not_tell_its_processes_leaves_it_unknown_whatever_others_tell(look):
    assert look(*[(OURS, None)] * 8) == (None, [])


def test_a_run_is_shared_though_one_gpu_does_not_tell_its_processes(look):
    shared, (told,) = look(*[(OURS | HIM, None)] * 8)
    assert shared is True
    assert "GPU (0)" in told


def test_one_look_at_which_a_gpu_does_not_tell_changes_nothing(look):
    assert look((OURS, OURS), (OURS, None), (OURS, OURS)) == (False, [])
