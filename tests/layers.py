"""The layers of the package, from the top down: a package imports only from the rows below its own.

``test_architecture.py`` checks every import against this table, imports for types included, and
the picture in ``docs/architecture.md`` is drawn from it.
"""

from __future__ import annotations

LAYERS = (
    ("__main__",),
    ("cli",),
    ("elastic/verb", "run_on/kubernetes", "run_on/slurm"),
    ("commands",),
    ("server",),
    ("view",),
    ("export", "maintenance", "notify", "schedule", "elastic/nodes"),
    ("adapt", "elastic", "gradients", "loader", "sync", "run_on/hosts"),
    ("launcher", "simulate"),
    ("metrics", "analysis", "choice"),
    ("history", "bandit", "gpu"),
    ("energy", "adapt/rank", "elastic/rank", "loader/rank", "sync/rank"),
    ("gradients/rank",),
    ("worker",),
    ("sidecar",),
    ("jobfile", "files"),
    ("parts", "run_on"),
    ("trial", "plugins"),
    (
        "cost",
        "redaction",
        "plain_text",
        "target",
        "clock",
        "job_name",
        "errors",
        "tariff",
        "record_json",
        "reasons",
        "lever",
    ),
)

VALUES = frozenset(LAYERS[-1]) | frozenset(LAYERS[-2])

_RANK = {"sidecar", "files", "redaction", "target", "parts"}

ONLY = {
    "bandit": VALUES,  # policies are pure
    "history": VALUES | {"files"},  # a store knows no policy and no launcher
    "worker": _RANK,  # a rank loads as little as it can
    "adapt/rank": _RANK | {"worker", "gradients/rank"},
    "elastic/rank": _RANK | {"worker"},
    "loader/rank": _RANK | {"worker"},
    "gradients/rank": _RANK | {"worker"},
    "sync/rank": _RANK | {"worker", "gradients/rank"},
    "energy": VALUES | {"files"},
    "analysis": VALUES | {"bandit"},
    "choice": VALUES | {"bandit", "jobfile"},  # a decision is a function of values
    "simulate": VALUES | {"analysis", "bandit", "choice", "jobfile"},
}
"""Packages that import less than their row would allow."""

BOTH_WAYS = {
    ("bandit", "bandit/auto"),
    ("history", "history/http"),
    ("history", "history/shared"),
    ("server", "server/pages"),
    ("server", "server/zeus"),
}
"""Folders within a package that import each other: none may be added, and those are to go."""


def package_of(path: str) -> str:
    """Return the package, of those in the table, that a module or a folder is in, by its path."""
    place = path.removesuffix(".py").removesuffix("/__init__")
    fitting = [name for row in LAYERS for name in row if f"{place}/".startswith(f"{name}/")]
    return max(fitting, key=len, default=place.split("/")[0])


def below(package: str) -> set[str]:
    """Return the packages from which a package may import, beside itself."""
    for number, row in enumerate(LAYERS):
        if package in row:
            allowed = {name for lower in LAYERS[number + 1 :] for name in lower}
            return allowed & ONLY.get(package, allowed)
    raise ValueError(f"{package} is in no layer")


def draw() -> str:
    """Return the layers as a picture of text, the top row first."""
    rows = ["   ".join(row) for row in LAYERS]
    width = max(map(len, rows))
    rule = "─" * (width + 2)
    return f"\n├{rule}┤\n".join(f"│ {row:^{width}} │" for row in rows).join(
        [f"┌{rule}┐\n", f"\n└{rule}┘"]
    )
