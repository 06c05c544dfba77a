"""What a submit does before its first attempt."""

from __future__ import annotations

from types import SimpleNamespace

from tests.factories import load_job
from tests.history.memory import MemoryHistory
from zeusrun.commands.recurrence import prepare
from zeusrun.launcher.context import Submission
from zeusrun.launcher.events import Warned
from zeusrun.redaction import MASK


def test_a_submit_begins_with_the_secrets_of_its_job_and_with_warnings(tmp_path):
    said = []
    submission = Submission(
        spec=load_job(tmp_path, env={"API_KEY": MASK}, objective={"metric": "loss", "mode": "max"}),
        history=MemoryHistory(), policy=None, devices=(), world_size=1, torchrun=None,
        home=tmp_path, environment={"API_KEY": "1234"},
        cluster=SimpleNamespace(remarks=["GPUs differ"], nodes=()),
    )  # fmt: skip
    assert prepare(submission, said.append).spec.env["API_KEY"] == "1234"
    texts = [event.text for event in said if isinstance(event, Warned)]
    assert texts[-1] == "GPUs differ"
    assert any("lower values of 'loss' are usually the better ones" in text for text in texts)
