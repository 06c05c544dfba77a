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
# int() would accept 1_0 and digits of other scripts, and refuse thousands of digits.
_INDEX = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)

PciAddress: TypeAlias = tuple[int, int, int]
"""PCI domain, bus and device."""


@dataclass(frozen=True)
class GpuIdentity:
    """A GPU of this machine; ``mig_models`` are the product names of its MIG instances by UUID."""

    nvml_index: int
    uuid: str
    model: str
    mig_models: Mapping[str, str] = field(default_factory=dict)
    pci: PciAddress | None = None


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU that a job uses, whole or through a MIG instance; ``model`` is what the job uses."""

    nvml_index: int
    model: str
    is_mig: bool = False


def parse_visible(value: str | None) -> tuple[int | str, ...] | None:
    """Split ``CUDA_VISIBLE_DEVICES`` into CUDA indices and UUIDs (or their prefixes).

    Like CUDA, it ignores everything from the first negative index or empty entry on, and from
    Slurm's ``NoDevFiles``. ``None`` is a variable that is not set: all GPUs are visible. An entry
    that is neither, or occurs twice, is a ``VisibleGpusError``: CUDA then shows no GPU.
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
                f"{_VARIABLE}: {text!r:.100} is neither an index nor a GPU or MIG UUID; "
                "`nvidia-smi -L` lists them"
            )
        if entry in entries:
            raise VisibleGpusError(f"{_VARIABLE}: {text!r:.100} occurs twice; list it once")
        entries.append(entry)
    return tuple(entries)


def resolve_visible(
    entries: Sequence[int | str] | None,
    gpus: Sequence[GpuIdentity],
    *,
    pci_order: bool,
    count: int | None,
) -> list[VisibleGpu]:
    """Find the first ``count`` visible GPUs (``None``: all), in CUDA's order.

    An entry that names no GPU is an error, even after the first ``count``, because it is nearly
    always a mistake. CUDA would silently show the GPUs before it. A GPU with several of its MIG
    instances listed appears once: it is metered as a whole.

    ``entries`` come from ``parse_visible``; ``gpus`` are all that the job could see. Indices count
    them by PCI address; if one is unknown, in the order given. Without ``pci_order``
    (``CUDA_DEVICE_ORDER=PCI_BUS_ID``), CUDA lists the fastest GPU first.

    Raises:
        VisibleGpusError: If an entry names no GPU or several, two entries name the same, or an
            index depends on which of different GPUs CUDA considers the fastest.
    """
    known = [(gpu.pci, gpu.nvml_index, gpu) for gpu in gpus if gpu.pci is not None]
    if len(known) == len(gpus):  # NVML's own order is not promised to be CUDA's
        gpus = [gpu for _, _, gpu in sorted(known)]
    wanted = range(len(gpus)) if entries is None else entries
    found = [_find(entry, gpus) for entry in wanted]
    if all(isinstance(entry, int) for entry in wanted):  # a MIG instance hides all the others
        found = [gpu for gpu in found if gpu.is_mig][:1] or found
    unique: dict[int, VisibleGpu] = {}
    for number, gpu in enumerate(found):
        if gpu in found[:number] and not gpu.is_mig:
            raise VisibleGpusError(f"{_VARIABLE} names a {gpu.model} twice; list it once")
        if count is None or number < count:
            unique.setdefault(gpu.nvml_index, gpu)
    indexed = any(isinstance(entry, int) for entry in wanted[:count])
    different = len({gpu.model for gpu in gpus}) > 1
    if indexed and different and not pci_order and len(unique) < len(gpus):
        raise VisibleGpusError(
            "CUDA's order of these GPUs is unknown, because they differ: set "
            f"CUDA_DEVICE_ORDER=PCI_BUS_ID, or name them by UUID in {_VARIABLE}"
        )
    return list(unique.values())


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
    # A complete UUID counts, even if another UUID begins with it.
    matches = [gpu for uuid, gpu in names if uuid == wanted] or [
        gpu for uuid, gpu in names if uuid.startswith(wanted)
    ]
    if len(matches) != 1:
        what = "no GPU of this machine" if not matches else f"{len(matches)} GPUs, not one"
        raise VisibleGpusError(
            f"{_VARIABLE}: {entry!r:.100} names {what}; `nvidia-smi -L` lists them"
        )
    return matches[0]


def _shown(gpu: GpuIdentity) -> VisibleGpu:
    """Return what CUDA shows of a whole GPU: its first MIG instance, if it has any."""
    for model in gpu.mig_models.values():
        return VisibleGpu(gpu.nvml_index, model, is_mig=True)
    return VisibleGpu(gpu.nvml_index, gpu.model)
