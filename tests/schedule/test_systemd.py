"""Units of systemd and manifests of Kubernetes that say the same as the schedule."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import yaml

from zeusrun.errors import UsageError
from zeusrun.schedule.cron_expression import Timetable
from zeusrun.schedule.due import Rules
from zeusrun.schedule.systemd import kubernetes_cronjob, systemd_units


def manifest(schedule):
    return yaml.safe_load(kubernetes_cronjob(schedule, "example/train:1", "home"))


def rules(expression="0 2 * * *", tz="Europe/Paris", **changes):
    return Rules(Timetable(expression, tz), key="digits", **changes)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 300),  # late, it is missed
        ({"catch_up": "once"}, None),  # as Kubernetes does without a bound
        ({"catch_up": "once", "deadline_s": 7200.0}, 7200),
        ({"deadline_s": 60.0}, 60),
        ({"deadline_s": 5.0}, 10),  # less may never start
    ],
)
def test_how_late_a_run_may_start_is_the_same(nightly, changes, seconds):
    spec = manifest(nightly(rules=rules(**changes)))["spec"]
    assert spec.get("startingDeadlineSeconds") == seconds


def test_the_time_zone_is_always_named(nightly, monkeypatch, tmp_path):
    assert manifest(nightly(rules=rules()))["spec"]["timeZone"] == "Europe/Paris"
    local = nightly(rules=rules(tz=None))
    zone = tmp_path / "zoneinfo" / "Asia" / "Tokyo"
    zone.parent.mkdir(parents=True)
    zone.write_bytes(b"")
    monkeypatch.setattr("zeusrun.schedule.cron_expression._LOCAL_ZONE", zone)
    assert manifest(local)["spec"]["timeZone"] == "Asia/Tokyo"
    monkeypatch.setattr("zeusrun.schedule.cron_expression._LOCAL_ZONE", tmp_path / "none")
    assert manifest(local)["spec"]["timeZone"] == "Etc/UTC"
    monkeypatch.setattr(
        "zeusrun.schedule.cron_expression._LOCAL_ZONE", tmp_path
    )  # of no known name
    with pytest.raises(UsageError, match="name of this machine's time zone"):
        manifest(local)


@pytest.mark.parametrize("expression", ["0 2 * * 7", "0 2 * * 5-7", "0 2 L * *", "0 2 * * MON#1"])
def test_an_expression_that_kubernetes_does_not_know_is_refused(nightly, expression):
    with pytest.raises(UsageError, match="Kubernetes does not know"):
        manifest(nightly(rules=rules(expression)))


def test_the_name_is_a_dns_label_however_it_is_cut(nightly):
    name = manifest(nightly("A" * 51 + "-b", rules=rules()))["metadata"]["name"]
    assert name == "a" * 51


@pytest.mark.parametrize("image", ["", "a b", "-x", "a\nb"])
def test_what_is_no_image_is_refused(nightly, image):
    with pytest.raises(UsageError, match="is no container image"):
        kubernetes_cronjob(nightly(rules=rules()), image, "home")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")
@pytest.mark.parametrize("name", ["plain", "a b", "d$e", "50%", 'q"t', "é"])
def test_systemd_reads_the_units(tmp_path, name):
    python = tmp_path / name / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    for unit, text in systemd_units(str(python), tmp_path / name, ["PYTHONPATH=/a b"]).items():
        (tmp_path / unit).write_text(text)
    unit = tmp_path / "zeusrun-schedule.service"
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", unit], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "zeusrun" in line or "python" in line]
    assert ours == []
