"""Which GPUs NVML finds on this machine, and their MIG instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.gpu.cuda_visible import GpuIdentity
from zeusrun.gpu.nvml_answers import unless_unsupported

if TYPE_CHECKING:
    from zeusrun.gpu.cuda_visible import PciAddress


def identify_gpus(nvml: Any) -> tuple[list[GpuIdentity], dict[int, Exception]]:  # noqa: ANN401 - untyped module
    """List the GPUs that this process may use.

    Args:
        nvml: The module ``pynvml``, initialised.

    Returns:
        GPUs in NVML's order, and NVML's error by index for each GPU that does not answer: it is
        lost, lacks power or an interrupt, or fails for an unknown reason.

    Raises:
        pynvml.NVMLError: If NVML does not answer, or its driver was restarted meanwhile.
    """
    identities: list[GpuIdentity] = []
    silent: dict[int, Exception] = {}
    for nvml_index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(nvml_index)
            identities.append(
                GpuIdentity(
                    nvml_index=nvml_index,
                    uuid=nvml.nvmlDeviceGetUUID(handle),
                    model=nvml.nvmlDeviceGetName(handle),
                    mig_models=_mig_models(nvml, handle),
                    pci=read_pci_address(nvml, handle),
                )
            )
        except nvml.NVMLError_NoPermission:
            continue  # not available in this container, so CUDA does not count it either
        except nvml.NVMLError_Uninitialized:
            raise
        except nvml.NVMLError as error:  # the other GPUs still work
            silent[nvml_index] = error
    return identities, silent


def read_pci_address(nvml: Any, handle: Any) -> PciAddress | None:  # noqa: ANN401 - untyped module
    """Return a GPU's PCI domain, bus and device; ``None`` if unknown.

    Raises:
        pynvml.NVMLError: If the GPU does not answer.
    """
    pci = unless_unsupported(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    return None if pci is None else (pci.domain, pci.bus, pci.device)


def _mig_models(nvml: Any, handle: Any) -> dict[str, str]:  # noqa: ANN401 - untyped module
    models = {}
    maximum = unless_unsupported(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    for index in range(maximum or 0):  # a GPU without MIG has no instances
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue  # unused
        models[nvml.nvmlDeviceGetUUID(instance)] = nvml.nvmlDeviceGetName(instance)
    return models
