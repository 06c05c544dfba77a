"""Norms of the gradients of single examples, from the normalisation layers of a model.

A layer computes y = weight · x̂ + bias, so the gradient of example i is Σ_t dy_it · x̂_it for the
weight and Σ_t dy_it for the bias: dy and x suffice. The noise scale of these layers tracks that of
the whole model (Gray et al., NeurIPS 2024, arXiv:2411.00999).
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch

from zeusrun.gradients.rank.gradients import Gradients, OneRankMeter, as_number, hook, squared_norm
from zeusrun.gradients.rank.noise import Norms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from zeusrun.gradients.rank.noise import Measuring


_MAX_FAILURES = 3  # measured steps in a row without a result, after which it gives up
_NO_HOOK: Any = contextlib.nullcontext.__exit__  # takes anything, returns None, needs no zeusrun
_TOLERANCE = 0.05  # of the sum over the examples; bfloat16 rounds by 0.4 %


def find_layers(model: torch.nn.Module) -> list[Any]:
    """Return the layers of a model from which the gradients of single examples can be computed.

    Other classes called …RMSNorm, such as those of transformers, have no common base. What they
    compute is checked against the gradient of their weight.
    """
    known = {torch.nn.LayerNorm.forward, torch.nn.RMSNorm.forward}
    return [
        layer
        for layer in model.modules()
        if isinstance(weight := getattr(layer, "weight", None), torch.nn.Parameter)
        and weight.requires_grad
        and (
            type(layer).forward in known
            or (type(layer).__name__.endswith("RMSNorm") and _epsilon(layer) is not None)
        )
    ]


def measure_alone(
    module: Any, replace: Callable[[Gradients], None], how: Measuring
) -> Examples | Gradients:
    """Measure by examples if a model has layers for that, else by its micro-batches.

    Args:
        module: The model.
        replace: Called with what takes the place of the returned meter, if it cannot measure.
        how: What to measure, and whom to tell.
    """
    reference = weakref.ref(module)

    def compare_micro_batches(_reason: str) -> None:
        if (module := reference()) is not None:
            replace(Gradients(module.parameters(), how))

    if layers := find_layers(module):
        return Examples(module, layers, how._replace(fail=compare_micro_batches))
    return Gradients(module.parameters(), how)


class Examples(OneRankMeter):
    """Measures the normalisation layers of one model.

    Args:
        model: The model, which is called once for each loss.
        layers: Of ``find_layers``.
        how: What to measure, and whom to tell.
    """

    def __init__(self, model: torch.nn.Module, layers: Sequence[Any], how: Measuring) -> None:
        super().__init__(how)
        # torch's own transformers have the batch in the second dimension by default.
        second = any(getattr(module, "batch_first", True) is False for module in model.modules())
        self._dimensions = (1, 0) if second else (0, 1)
        self._failures = 0  # measured steps in a row without a result
        self._is_checked = False  # whether the layers compute what their class names mean
        self._begin_step()
        self._handles.append(model.register_forward_pre_hook(ModuleHook(self._before_model)))
        for layer in layers:
            self._handles.append(layer.register_forward_hook(ModuleHook(self._after_layer)))
            check = functools.partial(self._add_autograd, layer)
            self._handles.append(layer.weight.register_hook(check))

    def _begin_step(self) -> None:
        self._is_usable = True
        self._seen = 0  # samples, up to the last loss
        self._now = 0  # samples, the present loss included
        self._examples = 0  # samples whose gradients are in ``_squares`` and ``_total``
        self._rows: dict[Any, Tensor] = {}  # by layer; each of shape (examples, parameters)
        self._order: list[Any] = []  # layers
        self._total: Tensor | None = None  # gradient of the whole step
        self._weights: dict[Any, Tensor] = {}  # gradients as summed here
        self._autograd: dict[Any, Tensor] = {}  # the same as autograd computes them
        self._squares: Any = 0.0
        self._loss_scale: float | Tensor = 1.0

    def _end_step(self) -> None:
        self._end_pass()
        total = self._total
        is_complete = self._examples == self._seen > 1
        can_check = self._is_checked or self._autograd.keys() >= set(self._order)
        if not self._is_usable or total is None or not is_complete or not can_check:
            self._failures += 1
            if self._failures >= _MAX_FAILURES:
                self._problem = "no layer shows which example a gradient belongs to"
            return
        self._failures = 0
        error = norm = total.new_zeros((), dtype=torch.float64)
        if not self._is_checked:
            measured = torch.cat([self._weights[layer] for layer in self._order])
            expected = torch.cat([self._autograd[layer] for layer in self._order])
            error, norm = squared_norm(measured - expected), squared_norm(expected)
        scale = as_number(self._loss_scale, total)
        numbers = [self._squares, squared_norm(total), scale, error, norm]
        self._deferred.add(torch.stack(numbers), self._examples)

    @hook
    def _before_model(self, _model: object, _arguments: object) -> None:
        if torch.is_grad_enabled():
            self._end_pass()
            self._now = self._how.samples()

    @hook
    def _after_layer(self, layer: Any, arguments: tuple[Any, ...], output: Tensor) -> None:
        if not (torch.is_grad_enabled() and output.requires_grad and layer.weight.requires_grad):
            return
        if _saves_elsewhere():
            # To hold x would undo activation checkpointing.
            self._problem = "the model uses activation checkpointing"
            return
        held = [arguments[0].detach()]
        after_backward: Any = functools.partial(self._after_backward, layer, held)
        output.register_hook(after_backward)  # type: ignore[no-untyped-call]

    @hook
    def _after_backward(self, layer: Any, held: list[Tensor], gradient: Tensor) -> None:
        if not held:  # a second backward pass through the same graph
            self._is_usable = False
            return
        with torch.no_grad():
            self._add(layer, held.pop(), gradient.detach())

    def _add(self, layer: Any, x: Tensor, gradient: Tensor) -> None:
        """Add one use of a layer to the gradients of the examples."""
        shape, width = gradient.shape, layer.weight.numel()
        # Without a data loader, ``samples`` does not grow with each micro-batch.
        sizes = {self._now - self._seen, self._now // self._how.parts}
        outer = [n for n in self._dimensions if n < len(shape) - layer.weight.dim()]
        batch = next((n for n in outer if shape[n] in sizes), None)
        if batch is None:
            self._is_usable = False
            return
        if not self._rows and not self._order:
            self._loss_scale = self._how.scale()
        size = shape[batch]
        normal = _normalise(layer, x).transpose(0, batch).reshape(size, -1, width)
        gradient = gradient.float().transpose(0, batch).reshape(size, -1, width)
        rows = (gradient * normal).sum(1)
        if getattr(layer, "bias", None) is not None:
            rows = torch.cat([rows, gradient.sum(1)], 1)
        if layer in self._rows:  # used several times
            rows += self._rows[layer]
        self._rows[layer] = rows

    def _end_pass(self) -> None:
        """Add the examples of the last loss to the step."""
        if not self._rows:
            return
        if not self._order:
            self._order = list(self._rows)
        self._seen = self._now
        if self._rows.keys() != set(self._order):
            self._is_usable = False
        else:
            rows = torch.cat([self._rows[layer] for layer in self._order], 1)
            self._squares = self._squares + squared_norm(rows.flatten())
            total = rows.sum(0)
            self._total = total if self._total is None else self._total + total
            self._examples += len(rows)
            if not self._is_checked:
                for layer in self._order:
                    part = self._rows[layer][:, : layer.weight.numel()].sum(0)
                    self._weights[layer] = self._weights.get(layer, 0) + part
        self._rows = {}

    @hook
    def _add_autograd(self, layer: Any, gradient: Tensor) -> None:
        if not self._is_checked:
            part = gradient.detach().float().flatten()
            self._autograd[layer] = self._autograd.get(layer, 0) + part

    def _receive_numbers(self, numbers: list[float], examples: int) -> None:
        squares, mean, scale, error, norm = numbers
        if error > _TOLERANCE**2 * norm:
            self._problem = "its normalisation layers do not compute what their class names mean"
            return
        self._is_checked = self._is_checked or 0 < norm < float("inf")
        square = scale * scale
        if square:
            norms = Norms(examples * squares / square, mean / square, 1.0, examples)
            self._how.receive(norms, "examples")


def _saves_elsewhere() -> bool:
    """Whether tensors for the backward pass are dropped and computed again, or held elsewhere.

    The function is private; if torch has no such function, the answer is yes.
    """
    try:
        return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    except (AttributeError, TypeError):
        return True


def _epsilon(layer: Any) -> float | None:
    values = (getattr(layer, name, None) for name in ("eps", "variance_epsilon", "epsilon"))
    return next((value for value in values if isinstance(value, float)), None)


def _normalise(layer: Any, x: Tensor) -> Tensor:
    """Return x̂ in float32."""
    x = x.float()
    if isinstance(layer, torch.nn.LayerNorm):
        return torch.nn.functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    epsilon = _epsilon(layer)  # None, as in torch.nn.RMSNorm: the smallest of the type
    if epsilon is None:
        epsilon = torch.finfo(x.dtype).eps
    dimensions = tuple(range(-layer.weight.dim(), 0))
    return x * torch.rsqrt(x.square().mean(dimensions, keepdim=True) + epsilon)


class ModuleHook:
    """A hook of a module; a copied or pickled module has a hook that does nothing instead.

    TorchScript does not see it.
    """

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
            for key, each in list(hooks.items()):
                if isinstance(each, ModuleHook) or getattr(each, "__func__", None) is _NO_HOOK:
                    removed.append((hooks, key, hooks.pop(key)))
        try:
            return script(obj, *args, **options)
        finally:
            for hooks, key, each in removed:
                hooks[key] = each

    torch.jit.script = without_hooks
