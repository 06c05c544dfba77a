"""No secret becomes a part of a manifest, which everybody in the namespace may read."""

from __future__ import annotations

import json

import pytest

from tests.factories import load_job
from zeusrun.errors import JobFileError, UsageError
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.queue.admission import Request
from zeusrun.run_on.kubernetes.manifest import build_manifest

SECTION = {"image": "registry.example/train:1", "resources": {"cpu": 1, "memory": "1Gi"}}
SERVER = "https://zeus.example"


def manifest_of(tmp_path, history=SERVER, section=SECTION, overrides=(), **changes):
    job = load_job(tmp_path, run_on={"kubernetes": section}, history=history, **changes)
    spec = load_spec(job.source, overrides)
    return json.dumps(build_manifest(spec, Request(overrides=tuple(overrides)), "job-1a2b3"))


@pytest.mark.parametrize("url", ["https://me:pass@zeus", "https://h/?token=pass", "tinydb"])
def test_a_history_of_the_environment_is_not_copied_with_its_password(tmp_path, monkeypatch, url):
    monkeypatch.setenv("ZEUSRUN_HISTORY", url)
    with pytest.raises(UsageError, match=r"secrets: \{ZEUSRUN_HISTORY: zeusrun/history\}") as error:
        manifest_of(tmp_path, history=None)
    assert "pass" not in str(error.value)
    secrets = {"ZEUSRUN_HISTORY": "zeusrun/history"}
    assert url not in manifest_of(tmp_path, None, {**SECTION, "secrets": secrets})


def test_another_history_of_the_environment_is_that_of_the_pods(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEUSRUN_HISTORY", SERVER)
    assert SERVER in manifest_of(tmp_path, history=None)


def test_a_secret_of_the_job_file_is_refused(tmp_path):
    with pytest.raises(JobFileError, match=r"env\.HF_TOKEN contains a secret, and a manifest must"):
        manifest_of(tmp_path, env={"HF_TOKEN": "abcdefgh"})
    with pytest.raises(JobFileError, match="args contains a secret") as error:
        manifest_of(tmp_path, args=["--api-key", "abcdefgh"])
    assert "abcdefgh" not in str(error.value)


def test_a_secret_of_an_override_is_refused(tmp_path):
    with pytest.raises(JobFileError, match=r"env\.HF_TOKEN contains a secret"):
        manifest_of(tmp_path, overrides=["env.HF_TOKEN=abcdefgh"])
