"""The files under ``deploy/``: container image, compose file, systemd unit. nginx has its own test."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing

import pytest
import yaml

from tests.factories import ROOT

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNIT = (DEPLOY / "zeusrun-server.service").read_text()


def docker_commands(name):
    """Return the arguments of each instruction of the Dockerfile; lines are joined."""
    text = DOCKERFILE.replace("\\\n", "")
    return re.findall(rf"^{name} (.*)$", text, re.MULTILINE)


def test_every_file_starts_the_server_with_options_that_exist(zeusrun):
    known = zeusrun("serve", "--help").stdout
    (image,) = docker_commands("CMD")
    started = re.search(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)[1]
    commands = [json.loads(image), COMPOSE["services"]["server"]["command"], started.split()]
    for program, verb, *options in commands:
        assert (program.rpartition("/")[2], verb) == ("zeusrun", "serve")
        for option in options:
            if option.startswith("--"):
                assert option.partition("=")[0] in known


def test_the_image_keeps_its_data_in_a_volume_of_a_user_without_rights():
    assert docker_commands("USER") == ["zeusrun"]
    (home,) = docker_commands("VOLUME")
    assert docker_commands("ENV") == [f"ZEUSRUN_HOME={home}"]
    assert docker_commands("EXPOSE") == ["8787"]
    for copied in docker_commands("COPY"):
        for source in copied.split()[:-1]:
            assert (ROOT / source).exists()


def test_the_compose_file_waits_for_the_database_and_has_no_password():
    server, database = COMPOSE["services"]["server"], COMPOSE["services"]["database"]
    assert server["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert "test" in database["healthcheck"]
    assert server["ports"] == ["127.0.0.1:8787:8787"]
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    for service in (server, database):
        for name, value in service["environment"].items():
            if "PASSWORD" in value:
                assert "${POSTGRES_PASSWORD:?}" in value, name
    volumes = {each.partition(":")[0] for s in (server, database) for each in s["volumes"]}
    assert volumes == set(COMPOSE["volumes"])


def test_the_systemd_unit_is_valid(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "zeusrun-server.service"
    unit.write_text(UNIT.replace("/opt/zeusrun/bin/zeusrun", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_needs_no_torch():
    pytest.importorskip("uvicorn")
    program = (
        "import sys, zeusrun.commands.serve, zeusrun.server.run; print({'torch', 'transformers', "
        "'matplotlib', 'pynvml'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_the_requirements_of_the_image_are_those_of_the_package_without_torch():
    pytest.importorskip("tomllib")
    command = [sys.executable, "deploy/requirements.py", "server", "postgresql"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = [re.match(r"[\w.-]+", line)[0] for line in done.stdout.split("\n") if line]
    assert {"uvicorn", "fastapi", "sqlalchemy", "alembic", "psycopg", "numpy"} <= set(names)
    assert "torch" not in names


@pytest.mark.long
def test_the_commands_of_the_dockerfile_make_a_server_that_answers(tmp_path):
    """In a virtual environment instead of an image; it needs a package index."""
    pytest.importorskip("tomllib")
    shutil.copytree(ROOT / "zeusrun", tmp_path / "src" / "zeusrun")
    for name in ("pyproject.toml", "README.md", "LICENSE", "deploy"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / "src" / name)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    (command,) = docker_commands("RUN")
    install = command.partition("&& rm -rf")[0]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ZEUSRUN_", "PYTHON"))}
    env = {**kept, "PATH": f"{venv}/bin:{os.environ['PATH']}", "ZEUSRUN_HOME": f"{tmp_path}/home"}
    done = subprocess.run(
        ["sh", "-ec", install],
        cwd=tmp_path / "src",
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and re.search(
        "No matching distribution|connection", done.stderr, re.IGNORECASE
    ):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    (image,) = docker_commands("CMD")
    (health,) = docker_commands("HEALTHCHECK")
    check = json.loads(health.partition(" CMD ")[2].replace("8787", str(port)))
    served = subprocess.Popen([*json.loads(image), "--port", str(port)], cwd=tmp_path, env=env)
    try:
        deadline = time.monotonic() + 60
        while subprocess.run(
            check, cwd=tmp_path, env=env, capture_output=True, check=False
        ).returncode:
            assert time.monotonic() < deadline
            assert served.poll() is None
            time.sleep(0.2)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/")
    finally:
        served.terminate()
        assert served.wait(30) == 0
