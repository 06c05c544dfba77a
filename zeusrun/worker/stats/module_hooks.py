"""Hooks of modules that copies, saved models and TorchScript do not contain."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_NO_HOOK: Any = contextlib.nullcontext.__exit__  # takes anything, returns None, needs no zeusrun


class ModuleHook:
    """A hook of a module; a copied or pickled module has a hook that does nothing instead."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call
        _hide_from_script()

    def __call__(self, *arguments: Any) -> None:
        """Call the function, except while the model is compiled or traced."""
        if not (torch.compiler.is_compiling() or torch._C._get_tracing_state()):
            self._call(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), _NO_HOOK.__name__)


@functools.cache
def _hide_from_script() -> None:
    """Remove these hooks while ``torch.jit.script`` runs: it would compile them, and fail."""
    script: Any = torch.jit.script

    @functools.wraps(script)
    def without_hooks(obj: Any, *args: Any, **options: Any) -> Any:
        removed = []
        modules = obj.modules() if isinstance(obj, torch.nn.Module) else ()
        for hooks in [h for m in modules for h in (m._forward_hooks, m._forward_pre_hooks)]:
            for key, hook in list(hooks.items()):
                if isinstance(hook, ModuleHook) or getattr(hook, "__func__", None) is _NO_HOOK:
                    removed.append((hooks, key, hooks.pop(key)))
        try:
            return script(obj, *args, **options)
        finally:
            for hooks, key, hook in removed:
                hooks[key] = hook

    torch.jit.script = without_hooks
