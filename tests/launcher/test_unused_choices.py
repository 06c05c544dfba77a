"""Whether the choice reaches the training, by the text of job and script alone."""

from __future__ import annotations

import os

import pytest

from tests.factories import load_job
from zeusrun.launcher.script_warnings import (
    find_choices_to_ask_for,
    find_unused_choices,
)


@pytest.fixture
def warnings(tmp_path):
    def find(text="print('training')", **changes):
        (tmp_path / "train.py").write_text(text)
        script = changes.pop("script", str(tmp_path / "train.py"))
        return find_unused_choices(load_job(tmp_path, script, **{"env": None, **changes}))

    return find


def test_a_batch_size_that_nothing_takes_is_told_with_the_line_to_write(warnings):
    (warning,) = warnings()
    assert warning.startswith(
        "the batch size seems never to reach the script: the job file has no ${batch_size}"
    )
    assert 'args: [--batch-size, "${batch_size}"]' in warning


@pytest.mark.parametrize(
    "taken",
    [
        {"args": ["--batch-size", "${batch_size}"]},
        {"env": {"BATCH": "${local_batch_size}"}},
        {"text": "import os; os.environ['ZEUSRUN_BATCH_SIZE']"},
        {"text": "import zeusrun"},
        {"args": ["${micro_batch_size}"]},
        {"text": "import os; os.environ['ZEUSRUN_MICRO_BATCH_SIZE']"},
        {"batch_size": {"candidates": [32]}},
        {"text": "\udcff".encode("utf-8", "surrogateescape").decode("latin-1") + "zeusrun"},
    ],
    ids=[
        "argument",
        "variable",
        "environment",
        "import",
        "micro",
        "micro environment",
        "one candidate",
        "no ASCII",
    ],
)
def test_whatever_takes_it_is_enough(warnings, taken):
    assert warnings(**taken) == []


def test_a_learning_rate_is_looked_for_in_the_same_way(warnings):
    job = {"args": ["--batch-size", "${batch_size}"], "learning_rate": {"base": 0.1}}
    (warning,) = warnings(**job)
    assert warning.startswith("the learning rate seems never to reach the script")
    assert warnings(**{**job, "args": [*job["args"], "${learning_rate}"]}) == []


def test_a_limit_of_samples_that_nothing_heeds_is_told(warnings):
    job = {"args": ["${local_batch_size}"], "batch_size": {"per_device_max": 8}}
    (warning,) = warnings(**job)
    assert warning.startswith("batch_size.per_device_max (8) seems to have no effect")
    assert warnings("from transformers import Trainer", **job) == []
    assert warnings(**{**job, "args": ["${micro_batch_size}", "${accumulation_steps}"]}) == []


def test_modules_are_looked_at_and_what_cannot_be_read_is_not_blamed(warnings, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("print('training')")
    module = {"script": None, "module": "package", "workdir": str(tmp_path)}
    assert len(warnings(**module)) == 1
    (tmp_path / "package" / "__main__.py").write_bytes(b"\xff")
    assert warnings(**module) == []
    assert warnings(**{**module, "module": "package.nowhere"}) == []
    (tmp_path / "package" / "__main__.py").unlink()
    os.mkfifo(tmp_path / "package" / "__main__.py")
    assert warnings(**module) == []


def test_what_only_a_question_to_zeusrun_gives_is_known(tmp_path):
    def find(text="import zeusrun", **changes):
        (tmp_path / "train.py").write_text(text)
        script = str(tmp_path / "train.py")
        return find_choices_to_ask_for(load_job(tmp_path, script, env=None, **changes))

    assert find() == {"batch_size"}
    assert find(learning_rate={"base": 0.1}) == {"batch_size", "learning_rate"}
    assert find("import zeusrun, os; os.environ['ZEUSRUN_BATCH_SIZE']") == frozenset()
    assert find("print('training')") == frozenset()  # warned of before
    assert find(args=["${batch_size}"]) == frozenset()
    assert find(instrument=False) == frozenset()
