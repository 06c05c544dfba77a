"""The codes of reasons, and stalls as values."""

from __future__ import annotations

from pathlib import Path

from tests.factories import REACHED, build_trial
from zeusrun.reasons import ReasonCode, Stall
from zeusrun.trial import Trial, TrialStatus

STALL = Stall(62.3, 0.44, "ranks 0-1", "ranks 0-1 are in all_reduce, train.py:33")


def test_every_code_is_in_the_docs():
    page = Path(__file__).parents[1].joinpath("docs", "results.md").read_text(encoding="utf-8")
    assert [code.value for code in ReasonCode if f"`{code.value}`" not in page] == []


def test_a_stall_is_described_with_its_ranks_unless_all_stand():
    text = "for 62 s, after pauses of at most 0.4 s; ranks 0-1 are in all_reduce, train.py:33"
    assert STALL.describe() == f"no optimizer step on ranks 0-1 {text}"
    assert STALL._replace(ranks="").describe() == f"no optimizer step {text}"


def test_code_and_stalls_are_part_of_the_record():
    code = ReasonCode.TIMEOUT
    trial = build_trial(stalls=(STALL,), reason_code=code)
    assert Trial.from_json(trial.to_json()) == trial
    assert (trial.to_json()["reason_code"], trial.to_json()["stalls"]) == ("timeout", [[*STALL]])
    ended = build_trial().finish(REACHED).ended_as(TrialStatus.LOST, code, "so", "now")
    assert (ended.status, ended.reason_code, ended.reason) == (TrialStatus.LOST, code, "so")


def test_a_code_of_a_later_version_does_not_make_a_record_unreadable():
    record = build_trial().finish(REACHED).to_json() | {"reason_code": "of_tomorrow"}
    assert Trial.from_json(record).reason_code is ReasonCode.UNKNOWN
