"""The plan that the launcher gives to each rank: written once, read once in each process."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from zeusrun.target import is_suspect, meets_target

if TYPE_CHECKING:
    from collections.abc import Mapping

_READ = {"int | None": int, "float | None": float, "str | None": str}
"""How the text of a variable is read, by the type of the field; others are JSON."""

# Outside zeusrun, variables with these names belong to other programs.
_INSIDE = {"attempt", "target", "given_batch_size", "given_learning_rate", "ranks", "parts"}


@dataclass(frozen=True)
class RankPlan:
    """The choices for a trial and the paths of its files.

    Each field is an environment variable, ``ZEUSRUN_<NAME>``. A field is ``None`` if nothing was
    chosen, or outside zeusrun. docs/training-script.md promises the fields above
    ``given_batch_size`` to scripts; the others are for the hooks.

    Attributes:
        run_dir: The folder of the run, on the host of the rank.
        batch_size: Samples per optimizer step over all ranks.
        micro_batch_size: The largest number of samples of a rank in a forward pass.
        given_batch_size: The batch size over all ranks that the script gives to its data loaders,
            if a hook replaces it.
        given_learning_rate: The learning rate of the script, if a hook replaces it.
        ranks: The number of ranks at the start, if it may change.
        secrets: The names of secret environment variables, separated by commas.
        parts: The values for the rank side of each part, by the part's key in the job file.
    """

    job: str | None = None
    trial: str | None = None
    attempt: int | None = None
    run_dir: str | None = None
    sidecar: str | None = None
    checkpoint_dir: str | None = None
    batch_size: int | None = None
    micro_batch_size: int | None = None
    accumulation_steps: int | None = None
    learning_rate: float | None = None
    max_epochs: int | None = None
    metric: str | None = None
    target: float | None = None
    mode: str | None = None
    on_target: str | None = None
    secrets: str | None = None
    given_batch_size: int | None = None
    given_learning_rate: float | None = None
    ranks: int | None = None
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def variables(self) -> dict[str, str]:
        """Return the plan as environment variables."""
        values = {**vars(self), "parts": json.dumps(self.parts) if self.parts else None}
        return {_variable(name): str(value) for name, value in values.items() if value is not None}

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> RankPlan:
        """Read the plan from the environment of a rank.

        Raises:
            ValueError: If the value of a variable has the wrong type. zeusrun writes no such value.
        """
        known: dict[str, Any] = {}
        inside = bool(variables.get(_variable("trial")))
        for each in (each for each in fields(cls) if inside or each.name not in _INSIDE):
            if text := variables.get(_variable(each.name)):
                known[each.name] = _READ.get(str(each.type), json.loads)(text)
        return cls(**known)

    def meets_target(self, metric: str, value: float) -> bool:
        """Whether a reported value ends the training at once, without a request of the launcher."""
        if metric != self.metric or self.on_target != "stop" or self.target is None:
            return False
        goal = self.target, self.mode or "max"
        return meets_target(value, *goal) and not is_suspect(value, *goal)


def _variable(name: str) -> str:
    return f"ZEUSRUN_{name.upper()}"
