"""The files that run a server: as far as they can be checked without Docker and systemd."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing

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


def test_the_docs_show_no_proxy_but_the_one_that_is_tested():
    """Without Host and X-Forwarded-For, every visitor would count as this machine."""
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        found = re.search("proxy_pass|reverse_proxy|ProxyPass", page.read_text(encoding="utf-8"))
        assert found is None, page


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_the_image_has_all_packages_of_the_server_but_torch():
    done = subprocess.run(
        [sys.executable, DEPLOY / "server_requirements.py"],
        check=True,
        capture_output=True,
        text=True,
    )
    names = {re.match(r"[\w-]+", line)[0].lower() for line in done.stdout.splitlines()}
    assert {"typer", "fastapi", "uvicorn", "sqlalchemy", "psycopg"} <= names
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


@pytest.mark.parametrize("name", ["mnist", "mnist_ddp"])
def test_the_manifests_of_the_examples_are_what_submit_creates(cli, name):
    job = f"jobs/{name}_kubernetes.yaml"
    first, _, manifest = read(f"kubernetes/{name}.yaml").partition("\n")
    assert f"`zeusrun submit {job} --dry-run`" in first
    assert cli("submit", ROOT / job, "--dry-run") == (0, manifest, "")


def test_every_file_that_the_image_for_pods_takes_is_there():
    copied = re.findall(r"^COPY (.*) \S+$", read("kubernetes/Dockerfile"), re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name


def test_systemd_accepts_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze is installed")
    unit = tmp_path / "zeusrun-server.service"
    unit.write_text(read("zeusrun-server.service").replace("/opt/zeusrun/bin/zeusrun", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], check=False, capture_output=True, text=True
    )
    assert "zeusrun-server.service:" not in done.stderr


@pytest.mark.long
@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_the_commands_of_the_dockerfile_make_a_server_that_answers(tmp_path):
    """In a virtual environment instead of an image; it needs a package index."""
    text = read("Dockerfile").replace("\\\n", "")
    copied = re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE)
    for source in (name for line in copied for name in line.split()[:-1]):
        to = tmp_path / "src" / source
        to.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, to)
    venv = tmp_path / "venv"
    install = re.search(r"^RUN (python deploy.*)$", text, re.MULTILINE)[1]
    install = install.replace("/tmp/", f"{tmp_path}/").replace("/opt/zeusrun", str(venv))
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
    if done.returncode and re.search("No matching distribution|onnection", done.stderr):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    (image,) = re.findall(r"^CMD (.*)$", text, re.MULTILINE)
    (health,) = re.findall(r"^HEALTHCHECK CMD (.*)$", text, re.MULTILINE)
    check = json.loads(health.replace("8787", str(port)))
    served = subprocess.Popen(
        ["zeusrun", *json.loads(image), "--port", str(port)], cwd=tmp_path, env=env
    )
    try:
        deadline = time.monotonic() + 60
        while subprocess.run(check, env=env, capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline
            assert served.poll() is None
            time.sleep(0.2)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/")
    finally:
        served.terminate()
        assert served.wait(30) == 0
