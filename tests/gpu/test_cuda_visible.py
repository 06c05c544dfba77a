"""What CUDA_VISIBLE_DEVICES makes visible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.errors import DeviceError, ExitCode
from zeusrun.gpu.cuda_visible import GpuIdentity, VisibleGpu, parse_visible, resolve_visible

MIG = {"MIG-aaaa-1": "A100 MIG 1g.5gb", "MIG-aaaa-2": "A100 MIG 2g.10gb"}
GPUS = [
    GpuIdentity(0, "GPU-1111-2222", "A100"),
    GpuIdentity(2, "GPU-1111-3333", "A100"),  # 1 is withheld from this user
    GpuIdentity(3, "GPU-4444-5555", "A100"),
]
WITH_MIG = [GPUS[0], GpuIdentity(2, "GPU-1111-3333", "A100", MIG), GPUS[2]]
MIXED = [GpuIdentity(0, "GPU-1", "T400"), GpuIdentity(1, "GPU-2", "A100")]


def resolve(value, gpus=GPUS, *, pci_order=False, count=None):
    visible = resolve_visible(parse_visible(value), gpus, pci_order=pci_order, count=count)
    return [gpu.nvml_index for gpu in visible]


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        (None, None),
        ("", ()),
        ("0", (0,)),
        (" 2 , 0 ", (2, 0)),
        ("0,-1,1", (0,)),
        ("-1", ()),
        ("0,,1", (0,)),
        ("1,", (1,)),
        ("NoDevFiles", ()),
        ("GPU-12,MIG-3", ("GPU-12", "MIG-3")),
    ],
)
def test_entries_are_split_as_cuda_does(value, entries):
    assert parse_visible(value) == entries


@pytest.mark.parametrize("value", ["gpu0", "0;1", "1.5", "0,all", "0x1", "1_0", "\u0661", "1 0"])
def test_an_entry_that_is_no_index_and_no_uuid_is_refused(value):
    with pytest.raises(DeviceError, match="neither an index nor a GPU or MIG UUID"):
        parse_visible(value)


def test_an_entry_named_twice_is_refused():
    with pytest.raises(DeviceError, match="twice"):
        parse_visible("0,1,0")


@given(st.lists(st.integers(0, 99), unique=True))
def test_indices_survive_being_written_and_parsed(indices):
    assert parse_visible(",".join(map(str, indices))) == tuple(indices)


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text):
    try:
        entries = parse_visible(text)
    except DeviceError:
        return
    assert all(entry >= 0 for entry in entries if isinstance(entry, int))
    assert len(set(entries)) == len(entries)


@pytest.mark.parametrize(
    ("value", "count", "nvml_indices"),
    [
        (None, None, [0, 2, 3]),
        (None, 2, [0, 2]),
        ("", None, []),
        ("2,0", None, [3, 0]),
        ("2,0", 1, [3]),
        ("0", 4, [0]),
        ("GPU-4444", None, [3]),
        ("gpu-1111-3", None, [2]),
        ("GPU-1111-2222,GPU-4", None, [0, 3]),
    ],
)
def test_visible_gpus_come_in_cuda_order(value, count, nvml_indices):
    assert resolve(value, count=count) == nvml_indices


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("MIG-aaaa-2", "A100 MIG 2g.10gb"),
        ("MIG-aaaa-1", "A100 MIG 1g.5gb"),
        ("GPU-1111-3", "A100 MIG 1g.5gb"),
    ],
)
def test_a_mig_instance_is_its_gpu_under_its_own_model(name, model):
    visible = resolve_visible((name,), WITH_MIG, pci_order=False, count=None)
    assert visible == [VisibleGpu(2, model, is_mig=True)]


def test_two_mig_instances_of_a_gpu_are_billed_once():
    assert resolve("MIG-aaaa-1,GPU-4444,MIG-aaaa-2", WITH_MIG) == [2, 3]


@pytest.mark.parametrize(
    ("value", "count", "nvml_indices"),
    [(None, None, [2]), (None, 1, [2]), ("0,1", 1, [2]), ("0,2", None, [0, 3]), ("1", None, [2])],
)
def test_by_index_cuda_shows_the_first_mig_instance_and_nothing_else(value, count, nvml_indices):
    assert resolve(value, WITH_MIG, count=count) == nvml_indices


def test_indices_count_gpus_by_their_pci_address():
    gpus = [
        GpuIdentity(0, "GPU-1", "A100", pci=(0, 0x81, 0)),
        GpuIdentity(1, "GPU-2", "T400", pci=(1, 0x01, 0)),
        GpuIdentity(2, "GPU-3", "A100", pci=(0, 0x41, 0)),
    ]
    assert resolve(None, gpus, pci_order=True) == [2, 0, 1]
    assert resolve("2,0", gpus, pci_order=True) == [1, 2]


def test_where_an_address_is_unknown_indices_count_in_the_order_given():
    gpus = [GpuIdentity(0, "GPU-1", "A100", pci=(0, 0x81, 0)), GpuIdentity(1, "GPU-2", "A100")]
    assert resolve(None, gpus, pci_order=True) == [0, 1]


def test_a_whole_uuid_is_that_gpu_even_if_another_begins_with_it():
    gpus = [GpuIdentity(0, "GPU-11", "A100"), GpuIdentity(1, "GPU-1", "A100")]
    assert resolve("GPU-1", gpus) == [1]


@pytest.mark.parametrize("value", ["GPU-1111-2222,GPU-1111-2", "0,GPU-1111-2", "GPU-4,gpu-4"])
def test_a_gpu_under_two_names_is_refused(value):
    with pytest.raises(DeviceError, match="twice"):
        resolve(value)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("3", "GPU 3, but there are only 3"),
        ("0,7", "GPU 7"),
        ("GPU-9", "'GPU-9' names no GPU"),
        ("GPU-1111", "'GPU-1111' names 2 GPUs"),
        ("MIG-bbbb", "'MIG-bbbb' names no GPU"),
        ("MIG-GPU-9/1/0", "'MIG-GPU-9/1/0' names no GPU"),
    ],
)
def test_an_entry_that_names_no_gpu_or_several_is_named(value, complaint):
    with pytest.raises(DeviceError, match=complaint) as caught:
        resolve(value)
    assert caught.value.exit_code is ExitCode.LAUNCH


@pytest.mark.parametrize(("value", "count"), [("0", None), (None, 1), ("1,0", 1)])
def test_indices_of_different_gpus_are_refused_as_cuda_sorts_them_by_speed(value, count):
    with pytest.raises(DeviceError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        resolve(value, MIXED, count=count)


@pytest.mark.parametrize(
    ("value", "count", "pci_order", "nvml_indices"),
    [
        ("1", None, True, [1]),
        (None, 1, True, [0]),
        (None, None, False, [0, 1]),
        ("GPU-2", None, False, [1]),
    ],
)
def test_different_gpus_are_fine_where_their_order_is_known_or_no_matter(
    value, count, pci_order, nvml_indices
):
    assert resolve(value, MIXED, pci_order=pci_order, count=count) == nvml_indices
