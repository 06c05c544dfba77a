"""The installed torchrun, looked at without importing torch."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import subprocess
import sys

import pytest

from zeusrun.errors import LaunchError
from zeusrun.launcher.processes import installation as torchrun
from zeusrun.launcher.processes.installation import find_torchrun


def test_the_installed_torchrun_declares_what_we_pass_it():
    found = find_torchrun()
    assert found.argv[:2] == (sys.executable, "-c")
    assert found.version == importlib.metadata.version("torch")
    assert found.flags >= {
        "--nnodes",
        "--nproc-per-node",
        "--max-restarts",
        "--rdzv-backend",
        "--rdzv-endpoint",
        "--rdzv-id",
    }


def test_torch_is_not_imported_for_it():
    program = (
        "import sys; from zeusrun.launcher.processes.installation import find_torchrun; find_torchrun();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a torch of our own, made of one file."""

    def install_torch(source):
        package = tmp_path / "torch"
        (package / "distributed").mkdir(parents=True)
        if source is not None:
            (package / "distributed" / "run.py").write_bytes(source)
        spec = importlib.machinery.ModuleSpec("torch", None, is_package=True)
        spec.submodule_search_locations = [str(package)]
        monkeypatch.setattr(torchrun.importlib.util, "find_spec", lambda _name: spec)

    return install_torch


def test_only_declared_options_count_as_known(install):
    install(
        b'parser.add_argument(\n    "--max-restarts",\n    \'--log-dir\',\n    help="--odd",\n)'
    )
    assert find_torchrun().flags == {"--max-restarts", "--log-dir"}


def test_source_that_cannot_be_decoded_declares_nothing(install):
    install(b"\xff\xfe")
    assert find_torchrun().flags == frozenset()


def test_a_torch_without_torchrun_is_no_torch(install):
    install(None)
    with pytest.raises(LaunchError, match="pip install torch"):
        find_torchrun()


def test_no_torch_is_said_with_the_interpreter_that_lacks_it(monkeypatch):
    monkeypatch.setattr(torchrun.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(LaunchError) as caught:
        find_torchrun()
    assert sys.executable in str(caught.value)
    assert caught.value.exit_code == 5


def test_a_torch_that_does_not_say_its_version_is_launched_all_the_same(install):
    install(b'"--max-restarts",')
    assert find_torchrun().version == "unknown"
