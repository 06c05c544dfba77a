"""Which GPUs ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` make visible. Pure.

Source: CUDA C++ Programming Guide, "CUDA Environment Variables", and NVIDIA's Multi-Instance GPU
User Guide, "CUDA Device Enumeration".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from zeusrun.errors import VisibleGpusError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VARIABLE = "CUDA_VISIBLE_DEVICES"
# int() would take 1_0 and other scripts' digits, and refuses thousands of them.
_INDEX = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_MAX_SHOWN = 100


PciAddress: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class GpuIdentity:
    """What tells one GPU of this machine from another.

    Attributes:
        nvml_index: NVML's number for it.
        uuid: ``GPU-…``.
        model: Product name.
        mig_models: Product name of each of its MIG instances, by its ``MIG-…`` UUID.
        pci: Its PCI domain, bus and device; ``None`` if NVML does not tell.
    """

    nvml_index: int
    uuid: str
    model: str
    mig_models: Mapping[str, str] = field(default_factory=dict)
    pci: PciAddress | None = None


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU that a job uses, whole or through a MIG instance.

    Attributes:
        nvml_index: NVML's number for it.
        model: Product name of what the job sees of it.
        is_mig: Whether that is a MIG instance.
    """

    nvml_index: int
    model: str
    is_mig: bool = False


def parse_visible(value: str | None) -> tuple[int | str, ...] | None:
    """Split ``CUDA_VISIBLE_DEVICES``.

    Like CUDA, it stops at the first negative index or empty entry; Slurm's ``NoDevFiles`` stops it
    as well.

    Returns:
        CUDA indices and UUIDs (or their prefixes) in order; ``None`` if the variable is not set,
        which makes all GPUs visible.

    Raises:
        VisibleGpusError: If an entry is neither, or stands there twice, for which CUDA shows no
            GPU.
    """
    if value is None:
        return None
    entries: list[int | str] = []
    for text in (part.strip() for part in value.split(",")):
        if not text or text == "NoDevFiles":
            break
        if text.upper().startswith(("GPU-", "MIG-")):
            entry: int | str = text
        elif _INDEX.fullmatch(text):
            entry = int(text)
            if entry < 0:
                break
        else:
            raise VisibleGpusError(
                f"{_VARIABLE}={_short(value)}: {_quoted(text)} is neither an index nor a GPU or "
                "MIG UUID; "
                "`nvidia-smi -L` lists them"
            )
        if entry in entries:
            twice = f"{_quoted(text)} stands there twice; name it once"
            raise VisibleGpusError(f"{_VARIABLE}={_short(value)}: {twice}")
        entries.append(entry)
    return tuple(entries)


def resolve_visible(
    entries: Sequence[int | str] | None,
    gpus: Sequence[GpuIdentity],
    *,
    pci_order: bool,
    count: int | None,
) -> list[VisibleGpu]:
    """Find the first ``count`` visible GPUs.

    Stricter than CUDA, which silently shows those before an entry that names no GPU: such an entry
    is nearly always a mistake, even after the first ``count``.

    Args:
        entries: What ``parse_visible`` returned.
        gpus: All GPUs that the job could see. Indices count them by their PCI address; where one
            is unknown, in the order given.
        pci_order: Whether CUDA counts by PCI address (``CUDA_DEVICE_ORDER=PCI_BUS_ID``).
            Otherwise it puts the fastest first, which changes nothing among equal ones.
        count: How many of the visible ones the job uses; ``None`` is all.

    Returns:
        GPUs in CUDA's order. One whose MIG instances are named twice or more comes once: it is
        metered as a whole. Where GPUs are not named by UUID and one of them has MIG instances, CUDA
        shows a process the first instance and nothing else, so its GPU is the only one.

    Raises:
        VisibleGpusError: If an entry names no GPU or several, two name the same, or an index
            depends on which of the different GPUs CUDA takes for the fastest.
    """
    gpus = _by_pci_address(gpus)
    wanted = range(len(gpus)) if entries is None else entries
    by_index = all(isinstance(entry, int) for entry in wanted)
    found = [_find(entry, gpus) for entry in wanted]
    if by_index:  # a MIG instance hides all the others
        found = [gpu for gpu in found if gpu.is_mig][:1] or found
    unique: dict[int, VisibleGpu] = {}
    for number, gpu in enumerate(found):
        if gpu in found[:number] and not gpu.is_mig:
            raise VisibleGpusError(f"{_VARIABLE} names a {gpu.model} twice; name it once")
        if count is None or number < count:
            unique.setdefault(gpu.nvml_index, gpu)
    indexed = any(isinstance(entry, int) for entry in wanted[:count])
    different = len({gpu.model for gpu in gpus}) > 1
    if indexed and different and not pci_order and len(unique) < len(gpus):
        raise VisibleGpusError(
            "which GPUs CUDA counts first is unknown, as they differ: set "
            f"CUDA_DEVICE_ORDER=PCI_BUS_ID, or name them by UUID in {_VARIABLE}"
        )
    return list(unique.values())


def _by_pci_address(gpus: Sequence[GpuIdentity]) -> Sequence[GpuIdentity]:
    """Return GPUs as CUDA counts them; NVML's own order is not promised to be the same."""
    known = [(gpu.pci, gpu.nvml_index, gpu) for gpu in gpus if gpu.pci is not None]
    return [gpu for _, _, gpu in sorted(known)] if len(known) == len(gpus) else gpus


def _find(entry: int | str, gpus: Sequence[GpuIdentity]) -> VisibleGpu:
    if isinstance(entry, int):
        if entry < len(gpus):
            return _shown(gpus[entry])
        raise VisibleGpusError(
            f"{_VARIABLE} names GPU {entry}, but there are only {len(gpus)} GPUs"
        )
    names = [(gpu.uuid.lower(), _shown(gpu)) for gpu in gpus] + [
        (uuid.lower(), VisibleGpu(gpu.nvml_index, model, is_mig=True))
        for gpu in gpus
        for uuid, model in gpu.mig_models.items()
    ]
    wanted = entry.lower()
    # A whole UUID is what it says, even if another one begins with it.
    matches = [gpu for uuid, gpu in names if uuid == wanted] or [
        gpu for uuid, gpu in names if uuid.startswith(wanted)
    ]
    if not matches and wanted.startswith("mig-gpu-"):
        # Drivers before R470 name an instance MIG-<UUID of its GPU>/<instance>/<instance>.
        parent = wanted[len("mig-") :].split("/")[0]
        matches = [
            VisibleGpu(gpu.nvml_index, f"{gpu.model} MIG", is_mig=True)
            for gpu in gpus
            if gpu.uuid.lower() == parent
        ]
    if len(matches) != 1:
        what = "no GPU of this machine" if not matches else f"{len(matches)} GPUs, not one"
        raise VisibleGpusError(
            f"{_VARIABLE}: {_quoted(entry)} names {what}; `nvidia-smi -L` lists them"
        )
    return matches[0]


def _short(value: str) -> str:
    """Return what can be shown of a value that may be anything."""
    text = value if value.isprintable() else ascii(value)[1:-1]
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _quoted(text: str) -> str:
    return repr(text) if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]!r}..."


def _shown(gpu: GpuIdentity) -> VisibleGpu:
    """Return what CUDA shows of a GPU named as a whole: its first instance, if it has any."""
    for model in gpu.mig_models.values():
        return VisibleGpu(gpu.nvml_index, model, is_mig=True)
    return VisibleGpu(gpu.nvml_index, gpu.model)
