"""Bad values of ``CUDA_VISIBLE_DEVICES``: the visible GPUs, or an error that names the variable."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.fuzz.mutations import mutated, pieces, run_inputs
from zeusrun.errors import DeviceError
from zeusrun.gpu.cuda_visible import GpuIdentity, parse_visible, resolve_visible

FIRST, SECOND = (f"GPU-0a1b2c3d-0000-0000-0000-00000000000{n}" for n in (1, 2))
MIG = {"MIG-11111111-2222-3333-4444-555555555555": "H100 1g"}
MACHINES = (
    [],
    [GpuIdentity(0, FIRST, "H100")],
    [GpuIdentity(0, FIRST, "H100", MIG), GpuIdentity(1, SECOND, "H100")],
    [GpuIdentity(0, FIRST, "H100"), GpuIdentity(1, SECOND, "T4")],
)


def resolve(value, gpus, count):
    """Return the visible GPUs; ``None`` where the value is refused."""
    try:
        found = resolve_visible(parse_visible(value), gpus, pci_order=False, count=count)
    except DeviceError as error:
        assert "CUDA_" in str(error)
        assert len(str(error)) < 1000
        return None
    assert len({gpu.nvml_index for gpu in found}) == len(found) <= len(gpus)
    return found


def test_the_corpus_holds_good_values_and_bad_ones():
    lines = [line for piece in pieces("visible_devices") for line in piece.decode().split("\n")]
    found = [resolve(line, MACHINES[1], None) is not None for line in lines]
    assert True in found
    assert found.count(False) > 5


def test_any_value_makes_gpus_visible_or_is_refused():
    def visible_devices(content, gpus, count):
        for line in content.decode("utf-8", "surrogateescape").split("\n")[:4]:
            resolve(line, gpus, count)

    counts = st.none() | st.integers(0, 3)
    run_inputs(visible_devices, mutated("visible_devices"), st.sampled_from(MACHINES), counts)
