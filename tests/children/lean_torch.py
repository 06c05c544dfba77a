"""Import this before torch: it takes less CPU, and optimizers do without ``torch._dynamo``.

They and DDP import it to keep it off their own code, which matters only where a model is compiled,
and the import takes each rank a second of CPU. Whoever asks for anything else gets the real module.

Not for ranks that a script starts itself: they end as Python does, and then it matters what keeps a
model alive until the end: without ``torch._dynamo``, gloo may abort.

The garbage collector finds nothing in torch's 170,000 objects, while it is imported and later.
"""

import gc
import importlib
import sys
import types


class _Dynamo(types.ModuleType):
    trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
    utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
    graph_break = staticmethod(lambda: None)

    @staticmethod
    def disable(function=None, recursive=True, **_):
        return (lambda each: each) if function is None else function

    def __getattr__(self, name):
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:  # not the real one
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


if "torch" not in sys.modules:
    sys.modules["torch._dynamo"] = _Dynamo("torch._dynamo")

if __name__ == "lean_torch":  # in a script
    gc.disable()
    import torch  # noqa: F401

    gc.freeze()
    gc.enable()
