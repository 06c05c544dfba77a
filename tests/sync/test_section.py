"""The section ``sync`` of a job file."""

from __future__ import annotations

import json

import pytest

from tests.jobfile.test_spec import MINIMAL
from zeusrun.errors import JobFileError
from zeusrun.jobfile.spec import load_spec
from zeusrun.trial import adapts, name_variant, split_variant


@pytest.fixture
def job_file(tmp_path):
    (tmp_path / "train.py").write_text("")

    def write(text):
        path = tmp_path / "job.yaml"
        path.write_text(text)
        return path

    return write


RANKS = "launch: {nproc_per_node: 2}\n"


@pytest.mark.parametrize(
    ("sync", "variant"),
    [
        ("{}", None),
        ("{compress: bf16}", "sync bf16"),
        ("{compress: powersgd, rank: 4}", "sync powersgd 4 after 100"),
        ("{every: 8}", "sync average every 8 after 100"),
        ("{method: sma}", "sync sma 0.1"),
        ("{method: sma, switch_at: 20}", "sync sma 0.1 until 20"),
        ("{method: pair}", "sync pair"),
        ("{on_slow: compress}", "sync compress when slow"),
        ("{topology: ring}", "sync ring"),
        ("{topology: ring, vote: true}", "sync ring, votes"),
    ],
)
def test_each_way_has_a_name_of_its_own_and_can_be_read_again(job_file, sync, variant):
    spec = load_spec(job_file(f"{MINIMAL}{RANKS}sync: {sync}\n"))
    assert spec.variant == variant
    every_key = json.dumps(spec.sync.model_dump())  # as in the job.yaml of a run
    assert load_spec(job_file(f"{MINIMAL}{RANKS}sync: {every_key}\n")).sync == spec.sync


@pytest.mark.parametrize(
    ("sync", "more", "problem"),
    [
        ("{topology: star, compress: bf16}", RANKS, "cannot be used together with 'compress'"),
        ("{every: 8, compress: bf16}", RANKS, "cannot be used together with 'compress'"),
        ("{topology: star, method: sma}", RANKS, "cannot be used together with 'method'"),
        ("{on_slow: compress, every: 8}", RANKS, "cannot be used together with 'every'"),
        ("{switch_at: 8}", RANKS, "switch_at: needs method: sma"),
        ("{rank: 8}", RANKS, "rank: needs compress: powersgd"),
        ("{warmup: 8, method: pair}", RANKS, "warmup: needs every or compress: powersgd"),
        ("{every: 1}", RANKS, "greater than or equal to 2"),
        ("{vote: true}", RANKS, "vote: needs topology"),
        ("{every: 8, warmup: 1}", RANKS, "greater than or equal to 2"),
        ("{topology: rings}", RANKS, "'ring'"),
        ("{compress: bf16}", "launch: {nproc_per_node: 1}\n", "needs at least two ranks"),
        ("{compress: bf16}", f"{RANKS}elastic: {{max: 2}}\n", "together with 'elastic'"),
        ("{compress: bf16}", f"{RANKS}instrument: false\n", "remove instrument: false"),
    ],
)
def test_what_does_not_go_together_is_refused(job_file, sync, more, problem):
    with pytest.raises(JobFileError, match="sync") as error:
        load_spec(job_file(f"{MINIMAL}{more}sync: {sync}\n"))
    assert problem in str(error.value)


@pytest.mark.parametrize("adapted", [None, "noise-scale", "schedule 3:64,5:128"])
@pytest.mark.parametrize("sync", [None, "bf16", "powersgd 2 after 100", "ring, votes"])
def test_the_name_of_a_variant_can_be_taken_apart(adapted, sync):
    variant = name_variant(adapted, sync)
    assert split_variant(variant) == (adapted, sync)
    assert adapts(variant) == (adapted is not None)
