"""The job files of the examples, each over the real torchrun until its target is reached."""

from __future__ import annotations

import re

import pytest

from tests.factories import ROOT
from tests.runs import check_that_it_imports
from zeusrun.jobfile.spec import load_spec

JOBS = sorted((ROOT / "jobs").glob("*.yaml"))
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/train.py"))
# What a job for a cluster needs to train on this machine instead, as far as it can.
HERE = ("run_on=local", "history.url=null", "launch.nnodes=null")
NEEDS = {
    "diloco": "torchft",  # no wheels but for Linux on x86-64; see the extra dev
    "imagenet": "torchvision",
    "lightning": "lightning",
    "qa": "transformers",
    "timm": "timm",
}


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_every_job_file_is_well_formed_and_names_its_example(cli, job):
    code, printed, errors = cli("validate", job)
    assert (code, errors) == (0, "")
    assert f"job '{job.stem}' is well-formed" in printed


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_every_readme_shows_both_commands_on_one_screen(example):
    page = (example / "README.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 50
    assert re.search(
        rf"^    (torchrun|python) .*examples/{example.name}/train.py", page, re.MULTILINE
    )
    named = set(re.findall(r"jobs/(\w+)\.yaml", page))
    assert named
    assert named <= {job.stem for job in JOBS}
    overview = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert f"({example.name}/README.md)" in overview


@pytest.mark.long
@pytest.mark.torchrun
@pytest.mark.parametrize("job", [job for job in JOBS if job.stem != "digits"], ids=lambda j: j.stem)
def test_the_default_reaches_the_target(zeusrun, job):
    if job.stem in NEEDS:
        check_that_it_imports(NEEDS[job.stem])
    changes = ()
    if (spec := load_spec(job)).run_on is not None:
        changes = (*HERE, f"launch.nproc_per_node={spec.launch.nnodes or 1}")
    code, result, errors = zeusrun.submit(job, *(f"--set={change}" for change in changes))
    assert code == 0, errors
    (trial,) = result["trials"]
    assert trial["status"] == "REACHED"
    # On a busy machine the script trains on until the signal comes, perhaps to a worse value.
    assert not re.search(r"^! (?!at its end )", errors, re.MULTILINE), errors


@pytest.mark.long
@pytest.mark.torchrun
def test_another_batch_size_reaches_a_script_without_an_argument(zeusrun):
    """Lightning reads the signature of DataLoaders, and builds them a second time."""
    check_that_it_imports("lightning")
    job = ROOT / "jobs" / "lightning.yaml"
    code, _, errors = zeusrun.submit(job, "--batch-size", "256", "--set", "objective.target=0.5")
    assert code == 0, errors
    assert "batch size of each rank changed from 32 to 128" in errors
