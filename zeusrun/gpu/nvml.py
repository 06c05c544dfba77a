"""Lists and opens NVIDIA GPUs through NVML: the only importer of ``pynvml``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.errors import DeviceError, VisibleGpusError
from zeusrun.gpu.cuda_visible import VisibleGpu, parse_visible, resolve_visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from zeusrun.energy.device import Device
    from zeusrun.gpu.cuda_visible import GpuIdentity
    from zeusrun.gpu.nvml_gpu import Nvml, NvmlGpu


def gpus_of_job(environment: Mapping[str, str], count: int | None) -> list[Device]:
    """Open the first ``count`` GPUs (``None``: all) that a job with this environment will see.

    The environment may name a ``zeusd``. A MIG instance is metered as its whole GPU, because NVML
    has no power for instances; its model is the instance's, and its ``caveat`` says so.

    The devices are in CUDA's order; there are none without a library, a driver or a GPU.

    Raises:
        VisibleGpusError: If ``CUDA_VISIBLE_DEVICES`` is not usable on a machine with GPUs.
        DeviceError: If NVML does not answer, or a GPU that the job may use.
    """
    value = environment.get("CUDA_VISIBLE_DEVICES")
    with contextlib.suppress(VisibleGpusError):  # without a GPU the variable does not matter
        if count == 0 or parse_visible(value) == ():
            return []
    with _machine() as (nvml, gpus, silent):
        if not gpus and not silent:
            return []
        entries = parse_visible(value)
        if silent and (entries is None or not all(isinstance(e, str) for e in entries)):
            # CUDA may or may not count the silent GPU, so indices are ambiguous.
            others = "until then, list the others by UUID in CUDA_VISIBLE_DEVICES (`nvidia-smi -L`)"
            raise DeviceError(f"{silent[0]}; {others}")
        if silent and entries is not None:
            entries = entries[:count]  # a later one may be the silent one
        pci_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        try:
            visible = resolve_visible(entries, gpus, pci_order=pci_order, count=count)
        except VisibleGpusError as error:
            if silent:
                raise DeviceError(f"{error}. It may be this one: {silent[0]}") from error
            raise
        from zeusrun.gpu.nvml_gpu import open_all  # noqa: PLC0415 - see _machine
        from zeusrun.gpu.zeusd import find_zeusd  # noqa: PLC0415

        return open_all(nvml, visible, find_zeusd(environment))


def gpu_by_uuid(uuid: str, environment: Mapping[str, str]) -> NvmlGpu:
    """Open a whole GPU by its UUID, even a hidden one; ``DeviceError`` if it does not answer."""
    from zeusrun.gpu.nvml_gpu import NvmlGpu  # noqa: PLC0415 - see _machine
    from zeusrun.gpu.zeusd import find_zeusd  # noqa: PLC0415

    with _machine() as (nvml, gpus, silent):
        for gpu in gpus:
            if gpu.uuid == uuid:
                whole = VisibleGpu(gpu.nvml_index, gpu.model)
                return NvmlGpu(nvml, whole, find_zeusd(environment))
        if silent:
            raise DeviceError(f"{uuid} is not found. It may be this one: {silent[0]}")
    raise DeviceError(f"{uuid} is not in this machine; `nvidia-smi -L` lists the GPUs")


def gpus_of_machine() -> list[NvmlGpu | DeviceError]:
    """Open every whole GPU that this process may use, even hidden ones, in NVML's order.

    For a GPU that cannot be opened the list contains the error. ``DeviceError`` if NVML fails.
    """
    from zeusrun.gpu.nvml_gpu import NvmlGpu  # noqa: PLC0415 - see _machine

    opened: list[NvmlGpu | DeviceError] = []
    with _machine() as (nvml, gpus, silent):
        for gpu in gpus:
            try:
                opened.append(NvmlGpu(nvml, VisibleGpu(gpu.nvml_index, gpu.model)))
            except DeviceError as error:
                opened.append(error)
        return [*opened, *silent]


class _Machine(NamedTuple):
    nvml: Nvml
    gpus: Sequence[GpuIdentity] = ()
    silent: Sequence[DeviceError] = ()  # the errors of GPUs that do not answer


@contextlib.contextmanager
def _machine() -> Iterator[_Machine]:
    """Open NVML, list the GPUs, and close NVML; ``DeviceError`` if it does not answer."""
    import pynvml  # noqa: PLC0415 - only a job that may use GPUs pays for it

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        yield _Machine(pynvml)
        return
    except pynvml.NVMLError as error:
        raise DeviceError(
            f"NVML does not start: {error}; does `nvidia-smi` work? CUDA_VISIBLE_DEVICES= trains "
            "without GPUs"
        ) from error
    try:
        from zeusrun.gpu import nvml_gpu  # noqa: PLC0415 - for machines with a driver

        yield _Machine(pynvml, *nvml_gpu.list_gpus(pynvml))
    except pynvml.NVMLError as error:
        raise DeviceError(f"NVML cannot list the GPUs: {error}; see `nvidia-smi -L`") from error
    finally:
        # Each open device keeps NVML open by itself. After a driver restart NVML is closed already.
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
