"""Which variables a run keeps."""

from __future__ import annotations

import pytest

from zeusrun.schedule.environment import capture


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "CUDA_HOME",
        "LD_LIBRARY_PATH",
        "HF_HOME",
        "OMP_NUM_THREADS",
        "LC_ALL",
        "ZEUSD_HOST_PORT",
    ],
)
def test_what_libraries_need_is_kept(name):
    assert capture({name: "x"}, []) == {name: "x"}


@pytest.mark.parametrize(
    "name",
    ["NVIDIA_API_KEY", "HF_TOKEN", "HF_API_TOKEN", "TORCH_HUB_TOKEN", "XDG_RUNTIME_DIR", "SSH_TTY"],
)
def test_secrets_and_what_is_of_a_login_are_kept_only_if_named(name):
    assert capture({name: "x"}, []) == {}
    assert capture({name: "x"}, [name]) == {name: "x"}
