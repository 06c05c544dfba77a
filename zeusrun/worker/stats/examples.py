"""Norms of the gradients of single examples, from the normalisation layers of a model.

A layer computes y = weight · x̂ + bias, so the gradient of example i is Σ_t dy_it · x̂_it for the
weight and Σ_t dy_it for the bias: dy and x suffice. The noise scale of these layers tracks that of
the whole model (Gray et al., NeurIPS 2024, arXiv:2411.00999).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from zeusrun.worker.stats.later import Later
from zeusrun.worker.stats.module_hooks import ModuleHook
from zeusrun.worker.stats.noise import Norms
from zeusrun.worker.stats.norms import as_number, squared_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

_TRIES = 3  # measured steps without a result, after which there will be none
_TOLERANCE = 0.05  # of the sum over the examples; bfloat16 rounds by 0.4 %


def find_layers(model: torch.nn.Module) -> list[Any]:
    """Return the layers of a model whose gradients can be told apart by example.

    Other classes called …RMSNorm, as those of transformers, have no common base. What they compute
    is checked against the gradient of their weight.
    """
    own = {torch.nn.LayerNorm.forward, torch.nn.RMSNorm.forward}
    return [
        layer
        for layer in model.modules()
        if isinstance(weight := getattr(layer, "weight", None), torch.nn.Parameter)
        and weight.requires_grad
        and (
            type(layer).forward in own
            or (type(layer).__name__.endswith("RMSNorm") and _epsilon(layer) is not None)
        )
    ]


class Examples:
    """Measures the normalisation layers of one model.

    Args:
        model: The model, which is called once for each loss.
        layers: Of ``find_layers``.
        interval: Measure every so many optimizer steps.
        samples: Returns the samples since the last optimizer step; 0 if unknown.
        parts: In how many micro-batches ``samples`` come if they do not grow with each.
        scale: Returns by what the loss is multiplied.
        take: Gets the norms of a step.
        fail: Called once, with the reason, if this model cannot be measured so.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        layers: Sequence[Any],
        *,
        interval: int,
        samples: Callable[[], int],
        parts: int,
        scale: Callable[[], float | Tensor],
        take: Callable[[Norms], None],
        fail: Callable[[str], None],
    ) -> None:
        self._interval, self._samples, self._parts = interval, samples, parts
        self._scale, self._take, self._fail = scale, take, fail
        self._later = Later(self._take_in)
        # torch's own transformers have the batch second, unless they are told otherwise.
        second = any(getattr(module, "batch_first", True) is False for module in model.modules())
        self._dimensions = (1, 0) if second else (0, 1)
        self._steps = self._tries = 0
        self._checked = False
        self._problem: str | None = None
        self._begin_step()
        self._handles: list[Any] = [model.register_forward_pre_hook(ModuleHook(self._before_model))]
        for layer in layers:
            self._handles.append(layer.register_forward_hook(ModuleHook(self._after_layer)))
            self._handles.append(layer.weight.register_hook(functools.partial(self._check, layer)))

    def close(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._on = [], False

    def after_step(self) -> None:
        """End an optimizer step."""
        if not self._handles:
            return
        self._end_pass()
        total, whole = self._total, self._examples == self._seen > 1
        known = self._checked or self._truth.keys() >= set(self._order)
        if self._usable and total is not None and whole and known:
            self._tries = 0
            error = norm = total.new_zeros((), dtype=torch.float64)
            if not self._checked:
                found = torch.cat([self._weights[layer] for layer in self._order])
                truth = torch.cat([self._truth[layer] for layer in self._order])
                error, norm = squared_norm(found - truth), squared_norm(truth)
            scale = as_number(self._loss_scale, total)
            numbers = [self._squares, squared_norm(total), scale, error, norm]
            self._later.add(torch.stack(numbers), self._examples)
        elif self._on:
            self._tries += 1
            if self._tries >= _TRIES:
                self._problem = "no layer shows which example a gradient belongs to"
        self._steps += 1
        self._begin_step()
        if self._problem is not None:  # only here, as a hook must not remove hooks
            self.close()
            self._fail(self._problem)

    def flush(self) -> None:
        """Take in all that is measured."""
        self._later.flush()

    def _begin_step(self) -> None:
        self._on = self._steps % self._interval == 0 and self._problem is None
        self._usable = True
        self._seen = 0  # samples, up to the last loss
        self._now = 0  # samples, the present loss included
        self._examples = 0  # as many as gradients were told apart
        self._rows: dict[Any, Tensor] = {}  # by layer; each of shape (examples, parameters)
        self._order: list[Any] = []  # layers
        self._total: Tensor | None = None  # gradient of the whole step
        self._weights: dict[Any, Tensor] = {}  # gradients as summed here
        self._truth: dict[Any, Tensor] = {}  # as autograd has them
        self._squares: Any = 0.0
        self._loss_scale: float | Tensor = 1.0

    def _before_model(self, _model: object, _arguments: object) -> None:
        if not self._on or not torch.is_grad_enabled():
            return
        try:
            self._end_pass()
            self._now = self._samples()
        except Exception as error:  # noqa: BLE001 - the training goes on
            self._give_up(error)

    def _after_layer(self, layer: Any, arguments: tuple[Any, ...], output: Tensor) -> None:
        if not self._on or not torch.is_grad_enabled():
            return
        try:
            if not (output.requires_grad and layer.weight.requires_grad):
                return
            if _saves_elsewhere():
                # To hold x would undo activation checkpointing.
                self._problem = "the model uses activation checkpointing"
                return
            held = [arguments[0].detach()]
            hook: Any = functools.partial(self._after_backward, layer, held)
            output.register_hook(hook)  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 - the training goes on
            self._give_up(error)

    def _after_backward(self, layer: Any, held: list[Tensor], gradient: Tensor) -> None:
        if not self._on:
            return
        if not held:  # a second backward pass through the same graph
            self._usable = False
            return
        try:
            with torch.no_grad():
                self._add(layer, held.pop(), gradient.detach())
        except Exception as error:  # noqa: BLE001 - the training goes on
            self._give_up(error)

    def _add(self, layer: Any, x: Tensor, gradient: Tensor) -> None:
        """Add what one use of a layer gives to the gradients of the examples."""
        shape, width = gradient.shape, layer.weight.numel()
        # Samples do not grow with each micro-batch if no data loader is observed.
        sizes = {self._now - self._seen, self._now // self._parts}
        outer = [n for n in self._dimensions if n < len(shape) - layer.weight.dim()]
        batch = next((n for n in outer if shape[n] in sizes), None)
        if batch is None:
            self._usable = False
            return
        if not self._rows and not self._order:
            self._loss_scale = self._scale()
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
        """Take in the examples of the last loss."""
        if not self._rows:
            return
        if not self._order:
            self._order = list(self._rows)
        self._seen = self._now
        if self._rows.keys() != set(self._order):
            self._usable = False
        else:
            rows = torch.cat([self._rows[layer] for layer in self._order], 1)
            self._squares = self._squares + squared_norm(rows.flatten())
            total = rows.sum(0)
            self._total = total if self._total is None else self._total + total
            self._examples += len(rows)
            if not self._checked:
                for layer in self._order:
                    part = self._rows[layer][:, : layer.weight.numel()].sum(0)
                    self._weights[layer] = self._weights.get(layer, 0) + part
        self._rows = {}

    def _check(self, layer: Any, gradient: Tensor) -> None:
        if self._on and not self._checked:
            part = gradient.detach().float().flatten()
            self._truth[layer] = self._truth.get(layer, 0) + part

    def _take_in(self, numbers: list[float], examples: int) -> None:
        squares, mean, scale, error, norm = numbers
        if error > _TOLERANCE**2 * norm:
            self._problem = "its normalisation layers compute something else than their names say"
            return
        self._checked = self._checked or 0 < norm < float("inf")
        square = scale * scale
        if square:
            self._take(Norms(examples * squares / square, mean / square, 1.0, examples))

    def _give_up(self, error: Exception) -> None:
        self._problem = self._problem or f"{type(error).__name__}: {error}"
        self._on = False


def _saves_elsewhere() -> bool:
    """Whether tensors for the backward pass are dropped and computed again, or held elsewhere.

    The function is private; of a torch without it, take the worse for granted.
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
    epsilon = _epsilon(layer)  # torch's own has None for the least of the type
    if epsilon is None:
        epsilon = torch.finfo(x.dtype).eps
    dimensions = tuple(range(-layer.weight.dim(), 0))
    return x * torch.rsqrt(x.square().mean(dimensions, keepdim=True) + epsilon)
