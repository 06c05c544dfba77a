"""Every command of the pages on KungFu's experiments and on Zeus's pages."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.factories import ROOT
from tests.hosts import missing
from tests.runs import wait_for

SHARED = ROOT.parent / "shared" / "traces"
PAGES = ("kungfu.md", "zeus.md")
COMMANDS = [
    (page, line)
    for page in PAGES
    for block in re.findall(
        r"^```bash\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL
    )
    for line in block.splitlines()
]
RUN = [line for _, line in COMMANDS if "serve" not in line]
TIMEOUT_S = 1500  # ends a hang


def test_each_experiment_and_page_has_a_command():
    for page in PAGES:
        sections = re.split(r"^## ", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)[1:]
        assert all("```bash\n" in section for section in sections)
    assert len(COMMANDS) > 15


@pytest.mark.parametrize("line", [line for _, line in COMMANDS])
def test_what_a_command_names_exists(cli, line):
    """Programs, job files, and options with their values, without a training."""
    program, verb, *words = shlex.split(line)
    if program == "python":
        text = (ROOT / verb).read_text()
        assert all(f'"{word}"' in text for word in words if word.startswith("--"))
        return
    options = {word for word in words if word.startswith("--")}
    assert options <= set(re.findall(r"--[a-z-]+", cli(verb, "--help")[1]))
    if verb in {"submit", "scale"}:
        changes = [word for at, word in enumerate(words) if words[at - 1] == "--set"]
        sets = [part for change in changes for part in ("--set", change)]
        code, _, err = cli("validate", ROOT / words[0], *sets)
        assert code == 0, err


@pytest.fixture
def clone(tmp_path):
    """A folder that looks like a clone, in which commands may write files."""
    for name in ("benchmarks", "examples", "jobs"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.fixture
def environment(zeusrun):
    """The variables of somebody who has made the demo: its programs come first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    zeusrun.real_torchrun = True
    return {**zeusrun.environment, "PATH": path}


def reason_to_skip(line):
    """Return what this machine lacks for a command; ``None``: nothing."""
    if "--trace-dir" in line and not SHARED.is_dir():
        return f"the public traces are not in {SHARED}"
    if "--recovery" in line or "--namespaces" in line:
        return missing(sshd="--namespaces" in line)
    return None


@pytest.mark.long
@pytest.mark.torchrun
@pytest.mark.parametrize("line", RUN)
def test_a_command_runs(clone, environment, line):
    if (reason := reason_to_skip(line)) is not None:
        pytest.skip(reason)
    words = shlex.split(line.replace("--trace-dir DIR", f"--trace-dir {shlex.quote(str(SHARED))}"))
    if words[1] == "explain":  # after the command above it
        before = ["zeusrun", "submit", f"jobs/{words[2]}.yaml"]
        subprocess.run(before, cwd=clone, env=environment, check=True, capture_output=True)
    done = subprocess.run(
        words,
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    for at, word in enumerate(words):
        if words[at - 1] in {"--csv", "--figure"}:
            assert (clone / word).stat().st_size
    if "provision" in line:
        (table,) = Path(environment["ZEUSRUN_HOME"]).glob("runs/*/*/elastic/provision.csv")
        assert len(table.read_text().splitlines()) >= 2
    if "steps:" in line:
        assert "the schedule wants 2" in done.stdout
        assert "elastic.steps ended the training, after" in done.stdout


@pytest.mark.long
def test_the_server_of_the_page_answers(clone, environment):
    (line,) = (line for _, line in COMMANDS if "serve" in line)
    words = [*shlex.split(line)[:-1], "0"]  # any free port
    log = clone / "log"
    with log.open("w") as output:
        child = subprocess.Popen(words, cwd=clone, env=environment, stdout=output, stderr=output)
    try:
        wait_for(lambda: re.search(r"serves (http:\S+)", log.read_text()))
        address = re.search(r"serves (http:\S+)", log.read_text())[1]
        with urllib.request.urlopen(f"{address}/healthz", timeout=60) as answer:
            assert answer.status == 200
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(60)
