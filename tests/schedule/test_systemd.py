"""The units that systemd reads."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from zeusrun.schedule.systemd import systemd_units


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
