"""The files that run a server: as far as they can be checked without Docker and systemd."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml

from tests.factories import ROOT

DEPLOY = ROOT / "deploy"


def read(name):
    return (DEPLOY / name).read_text(encoding="utf-8")


def options_of(verb):
    done = subprocess.run(
        [sys.executable, "-m", "zeusrun", verb, "--help"],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200"},
    )
    return set(re.findall(r"--[a-z-]+", done.stdout))


def served(words):
    """Return the options of a command ``zeusrun serve …``."""
    assert "serve" in words
    return {word for word in words[words.index("serve") :] if word.startswith("--")}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_the_image_has_all_packages_of_the_server_but_torch():
    done = subprocess.run(
        [sys.executable, DEPLOY / "server_requirements.py"],
        check=True,
        capture_output=True,
        text=True,
    )
    names = {re.match(r"[\w-]+", line)[0].lower() for line in done.stdout.splitlines()}
    assert {"typer", "fastapi", "uvicorn", "sqlalchemy", "alembic", "psycopg"} <= names
    assert "torch" not in names


def test_the_server_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import zeusrun.server.run, zeusrun.cli"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_every_command_has_options_that_exist():
    compose = yaml.safe_load(read("compose.yaml"))["services"]["server"]["command"]
    image = next(line for line in read("Dockerfile").splitlines() if line.startswith("CMD"))
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.read_string(read("zeusrun-server.service"))
    started = shlex.split(unit["Service"]["ExecStart"])
    used = served(compose) | served(yaml.safe_load(image.removeprefix("CMD"))) | served(started)
    assert used <= options_of("serve")


def test_every_file_that_the_image_takes_is_there():
    for name in re.findall(r"deploy/[\w.]+", read("Dockerfile")):
        assert (ROOT / name).is_file(), name
    assert yaml.safe_load(read("compose.yaml"))["services"]["server"]["build"]["dockerfile"] == (
        "deploy/Dockerfile"
    )


def test_systemd_accepts_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze is installed")
    unit = tmp_path / "zeusrun-server.service"
    unit.write_text(read("zeusrun-server.service").replace("/opt/zeusrun/bin/zeusrun", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], check=False, capture_output=True, text=True
    )
    assert "zeusrun-server.service:" not in done.stderr
