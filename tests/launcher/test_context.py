"""What a submit needs of its machine before it starts anything."""

from __future__ import annotations

import resource

import pytest

from zeusrun.errors import DeviceError, ExitCode, LaunchError
from zeusrun.launcher.devices import resolve_world_size
from zeusrun.launcher.processes.torchrun import check_descriptors


@pytest.fixture
def limit(monkeypatch):
    """Let this process open so many files."""

    def put(count):
        monkeypatch.setattr(
            "zeusrun.launcher.processes.torchrun.resource.getrlimit", lambda _which: (count, count)
        )

    return put


@pytest.mark.parametrize(("count", "ranks"), [(40, 2), (1024, 128), (resource.RLIM_INFINITY, 8)])
def test_enough_descriptors_are_enough(limit, count, ranks):
    limit(count)
    check_descriptors(ranks)


@pytest.mark.parametrize(("count", "ranks"), [(12, 1), (24, 2), (256, 64)])
def test_too_few_are_told_before_torchrun_hangs(limit, count, ranks):
    limit(count)
    with pytest.raises(LaunchError, match=f"only {count} files .* `ulimit -n 1024`") as refused:
        check_descriptors(ranks)
    assert refused.value.exit_code == ExitCode.LAUNCH


@pytest.mark.parametrize(
    ("nproc_per_node", "gpus", "ranks"),
    [(3, 1, 3), ("cpu", 4, 8), ("gpu", 4, 4), ("auto", 4, 4), ("auto", 0, 8)],
)
def test_ranks_are_counted_by_torchruns_own_words(nproc_per_node, gpus, ranks):
    assert resolve_world_size(nproc_per_node, gpus, 8) == ranks


def test_gpus_asked_for_and_absent_are_an_error_that_says_what_to_do():
    with pytest.raises(DeviceError, match=r"'gpu'.*nvidia-smi.*'auto'"):
        resolve_world_size("gpu", 0, 8)
