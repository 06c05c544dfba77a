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
import venv
from contextlib import closing
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.factories import ROOT
from tests.runs import wait_for

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


def extras_in(text):
    """Return the extras that the first command of a text installs."""
    return set(re.search(r"pip install[^\n]*?\[([a-z,]+)\]", text)[1].split(","))


def requirements(names, project):
    """Return the names of all distributions that the package needs with some extras."""
    extras = project["optional-dependencies"]
    todo = [(Requirement(f"zeusrun[{','.join(names)}]"), "")]
    found = set()
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for each in {"", *requirement.extras} - {e for n, e in found if n == name}:
            found.add((name, each))
            if name == "zeusrun":
                needed = extras[each] if each else project["dependencies"]
            else:
                needed = metadata.requires(name) or ()
            todo += [(Requirement(text), each) for text in needed]
    return {name for name, _ in found} - {"zeusrun"}


@pytest.fixture(scope="module")
def server_python(tmp_path_factory):
    """The Python of an environment with what the docs install for a server, and no more.

    It takes the packages from the environment of the tests, so that no package index is needed.
    """
    tomllib = pytest.importorskip("tomllib")  # since Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = requirements(extras_in((ROOT / "docs" / "server.md").read_text()), project)
    assert {"fastapi", "sqlalchemy", "uvicorn", "matplotlib"} <= names
    assert "torch" not in names
    folder = tmp_path_factory.mktemp("server") / "environment"
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in names:
        package = metadata.distribution(name)
        for top in {file.parts[0] for file in package.files or () if file.parts[0] != ".."}:
            if top != "__pycache__" and not (site / top).exists():
                (site / top).symlink_to(package.locate_file(top))
    (site / "zeusrun").symlink_to(ROOT / "zeusrun")
    return folder / "bin" / "python"


@pytest.mark.long  # 9 s of CPU, for its environment
def test_the_server_of_the_docs_needs_no_torch_and_a_submit_says_what_to_install(
    server_python, zeusrun, record
):
    record(1)
    job = zeusrun.job()
    # The fixture's path has the fake torchrun, in a package that is called torch.
    env = {key: value for key, value in zeusrun.environment.items() if key != "PYTHONPATH"}

    def call(*arguments):
        done = subprocess.run(
            [server_python, "-m", "zeusrun", *arguments],
            env=env,
            cwd=zeusrun.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    for arguments in (
        ("history",),
        ("report", "-o", "report.html"),
        ("db", "create"),
        ("token", "create", "--job", "*", "--read"),
        ("token", "list"),
    ):
        code, text = call(*arguments)
        assert code == 0, text
    code, text = call("submit", job)
    assert code == 5
    assert "torch is not installed" in text
    assert "pip install '/path/to/zeusrun[train]'" in text
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    command = [server_python, "-m", "zeusrun", "serve", "--port", str(port)]
    served = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    try:
        lines = []
        while not lines or not lines[-1].startswith("Ctrl-C"):
            lines.append(served.stdout.readline())
            assert lines[-1], lines
        url = f"http://127.0.0.1:{port}/login"
        wait_for(lambda: answers(url), what="the page")
    finally:
        served.terminate()
        assert served.wait(300) == 0
        served.stdout.close()


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=300) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_the_image_and_the_service_install_what_the_docs_do():
    docs = extras_in((ROOT / "docs" / "server.md").read_text())
    assert extras_in(read("zeusrun-server.service")) == docs
    assert extras_in(read("Dockerfile").replace("\\\n", "")) == docs | {"postgresql"}


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
def test_the_commands_of_the_dockerfile_make_a_server_that_answers(tmp_path):
    """In a virtual environment instead of an image; it needs a package index."""
    text = read("Dockerfile").replace("\\\n", "")
    copied = re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE)
    for source in (name for line in copied for name in line.split()[:-1]):
        to = tmp_path / "src" / source
        to.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, to)
    folder = tmp_path / "environment"
    install = re.search(r"^RUN (python -m venv.*)$", text, re.MULTILINE)[1]
    install = install.replace("/opt/zeusrun", str(folder))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ZEUSRUN_", "PYTHON"))}
    env = {
        **kept,
        "PATH": f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ZEUSRUN_HOME": f"{tmp_path}/home",
    }
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
        assert served.wait(300) == 0
