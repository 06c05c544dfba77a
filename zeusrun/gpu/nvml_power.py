"""The current power of an NVIDIA GPU, from the best source that answers.

Names: NVML API Reference, "Field Value Enums". ``nvmlDeviceGetPowerUsage`` is a mean over a second
on Ampere and later except GA100. On a Grace Hopper it is the power of the whole module.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from zeusrun.gpu.nvml_answers import unless_unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULE_WITH_CPU = re.compile(r"\bG[HB]\d")  # GH200, GB200, …
_GPU_SCOPE = 0  # NVML_POWER_SCOPE_GPU


class PowerSensor:
    """Chooses the source of one GPU's power.

    A source that is not supported (any more: the driver may change during a long run) is dropped
    for the next one. A source that fails or returns 0 is skipped for that reading. A GPU that is on
    draws power: some drivers return 0 if a sensor is absent or asleep.
    """

    def __init__(self, nvml: Any, handle: Any, model: str) -> None:  # noqa: ANN401 - untyped module
        """Prepare; nothing is read yet.

        Args:
            nvml: The module ``pynvml``.
            handle: NVML's handle of the GPU.
            model: Its product name, which identifies modules that contain a CPU.
        """
        self._nvml = nvml
        self._handle = handle
        average = self._ask_average if _MODULE_WITH_CPU.search(model) else self._ask_usage
        self._sources: list[Callable[[], int | None]] = [self._ask_instant, average]

    def read_w(self) -> float | None:
        """Return watts now, or the mean of the last second; ``None`` if unknown.

        Raises:
            pynvml.NVMLError: If no source answers and one has failed.
        """
        failure = None
        for ask in tuple(self._sources):
            try:
                power_mw = ask()
            except self._nvml.NVMLError as error:
                failure = error
                continue
            if power_mw:
                return power_mw / 1000
            if power_mw is None:
                self._sources.remove(ask)
        if failure is not None:
            raise failure
        return None

    def _ask_instant(self) -> int | None:
        return self._ask_field(self._nvml.NVML_FI_DEV_POWER_INSTANT)

    def _ask_average(self) -> int | None:
        return self._ask_field(self._nvml.NVML_FI_DEV_POWER_AVERAGE)

    def _ask_usage(self) -> int | None:
        usage_mw: int | None = unless_unsupported(
            self._nvml, self._nvml.nvmlDeviceGetPowerUsage, self._handle
        )
        return usage_mw

    def _ask_field(self, field: int) -> int | None:
        nvml = self._nvml
        values = unless_unsupported(
            nvml, nvml.nvmlDeviceGetFieldValues, self._handle, [(field, _GPU_SCOPE)]
        )
        if values is None:
            return None
        code: int = values[0].nvmlReturn
        if code == nvml.NVML_SUCCESS:
            power_mw: int = values[0].value.uiVal
            return power_mw
        if code in (
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_INVALID_ARGUMENT,  # a driver older than the field
            nvml.NVML_ERROR_NO_PERMISSION,
        ):
            return None
        raise nvml.NVMLError(code)
