"""Packages that add to zeusrun by entry points, installed as pip leaves them."""

from __future__ import annotations

import sys
import textwrap

import pytest

from tests.factories import write_job
from zeusrun.bandit.registry import create_policy
from zeusrun.errors import UsageError
from zeusrun.jobfile.spec import load_spec
from zeusrun.plugins import has_plugin, load_plugin

LARGEST = """
from zeusrun.bandit.problem import ArmBelief
from zeusrun.trial import Decision, Stage


class Largest:
    name = "largest"

    def choose(self, problem, runs, rng):
        return Decision(problem.candidates[-1], Stage.EXPLORE, "the largest")

    def next_limit_w(self, problem, decision, profile):
        return None

    def review(self, problem, decision, running):
        return None

    def explain(self, problem, runs, rng):
        return [
            ArmBelief(global_batch_size=arm, trials=0, reached=0, chance=0.0, verdict="")
            for arm in problem.candidates
        ]
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a module ``largest_policy`` that declares entry points."""
    site = tmp_path / "site-packages"

    def add(entry_points, module=LARGEST):
        metadata = site / "zeusrun_largest-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: zeusrun-largest\nVersion: 1.0\n"
        )
        (metadata / "entry_points.txt").write_text(textwrap.dedent(entry_points))
        (site / "largest_policy.py").write_text(module)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, "largest_policy", raising=False)
        return site

    return add


POLICY = """
    [zeusrun.policies]
    largest = largest_policy:Largest
    auto = largest_policy:Largest
"""


def test_a_policy_of_a_plugin_chooses_for_a_submit(zeusrun, install):
    site = install(POLICY)
    job = zeusrun.job(policy={"name": "largest"}, batch_size={"candidates": [32, 64, 256]})
    done = zeusrun("submit", job, "--dry-run", PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    assert "batch size 256" in done.stdout
    assert "the largest" in done.stdout


def test_a_policy_of_a_plugin_can_be_simulated(zeusrun, install):
    site = install(POLICY)
    few = ("--workload", "law", "--seeds", "1", "--recurrences", "2")
    done = zeusrun("simulate", "--policy", "largest", *few, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    assert "largest" in done.stdout


def test_a_plugin_cannot_replace_a_policy_of_zeusrun(install):
    install(POLICY)
    assert type(create_policy("auto")).__module__ == "zeusrun.bandit.auto.policy"


def test_the_job_file_takes_the_name_without_importing_the_plugin(tmp_path, install):
    install(POLICY, module="raise RuntimeError('imported')")
    spec = load_spec(write_job(tmp_path, policy={"name": "largest"}))
    assert spec.policy.name == "largest"


def test_a_plugin_that_cannot_be_imported_ends_with_2_and_one_sentence(zeusrun, install):
    site = install(POLICY, module="import no_such_module")
    job = zeusrun.job(policy={"name": "largest"})
    done = zeusrun("submit", job, "--dry-run", PYTHONPATH=str(site))
    assert done.returncode == 2
    assert done.stderr == (
        "zeusrun: the plugin 'largest' (largest_policy:Largest, of the package zeusrun-largest) cannot be "
        "imported: ModuleNotFoundError: No module named 'no_such_module'; repair or uninstall "
        "that package\n"
    )


def test_a_plugin_that_makes_no_policy_is_named(install):
    install("[zeusrun.policies]\nlargest = largest_policy:TEXT\n", module="TEXT = 'none'")
    with pytest.raises(UsageError, match="'largest' does not make a policy: it needs a name and"):
        create_policy("largest")


def test_names_are_looked_for_in_their_own_group(install):
    install("[zeusrun.histories]\nlargest = largest_policy:Largest\n")
    assert has_plugin("zeusrun.histories", "largest")
    assert not has_plugin("zeusrun.policies", "largest")
    assert load_plugin("zeusrun.policies", "largest") is None
    assert load_plugin("zeusrun.histories", "largest").name == "largest"
