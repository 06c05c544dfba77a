"""Writes a guess as a job file with comments."""

from __future__ import annotations

import re
import shlex
import textwrap
from typing import TYPE_CHECKING

from zeusrun.jobfile.secrets import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeusrun.jobfile.guess.guess import Guess

_PLAIN = re.compile(r"(?:--?)?[A-Za-z][\w./-]*|(?:\.{0,2}/)+[\w./-]*|\.\.", re.ASCII)
_NO_TEXT = {"true", "false", "null"}  # YAML would not read these as text
_WIDTH = 100
_COLUMN = 40  # at which comments begin


def write_draft(
    guess: Guess,
    *,
    name: str,
    words: Sequence[str],
    file: str,
    workdir: str = ".",
    objective: tuple[str, str, float, str] | None = None,
) -> str:
    """Return the text of a job file.

    Args:
        guess: What is known of the job.
        name: Of the job.
        words: Of the command.
        file: Name of the job file.
        workdir: Where the command runs, as a path from the folder of the job file.
        objective: Metric, mode, target, and where they are from; ``None`` if they are not known.
    """
    launched, ranks = guess.launched, guess.ranks
    path = launched.script or ""
    if launched.script is not None and workdir != "." and not path.startswith("/"):
        path = f"{workdir}/{path}"
    lines = [
        "# Written by `zeusrun init` for this command:",
        f"#   {_shown(words)}",
        f"# Check the guesses, then run: zeusrun submit {_printable(file)}",
        *(_comment(f"Warning: {text}.") for text in guess.warnings),
        "",
        _line(f"name: {scalar(name)}", "all runs of a name share one history"),
        _line(f"module: {scalar(str(launched.module))}", "as with python -m")
        if launched.script is None
        else _line(f"script: {scalar(path.replace('$', '$$'))}", "relative to this file"),
    ]
    if workdir != ".":
        lines.append(_line(f"workdir: {scalar(workdir.replace('$', '$$'))}", "where it runs"))
    lines += _args(guess.args)
    if launched.env:
        lines += ["env:", *(f"  {key}: {scalar(value.replace('$', '$$'))}"
                            for key, value in launched.env.items())]  # fmt: skip
    processes = "one process" if ranks == 1 else f"{ranks} processes"
    lines += ["", "launch:"]
    shown = f"guessed batch sizes are for {processes}"
    lines.append(_line(f"  nproc_per_node: {launched.nproc_per_node}", shown))
    if launched.max_restarts:
        lines.append(f"  max_restarts: {launched.max_restarts}")
    lines += ["", *_objective(guess, objective), "", *_batch(guess), ""]
    lines += _learning_rate(guess)
    return "\n".join(lines) + "\n"


def scalar(text: str) -> str:
    """Return a text as YAML, in quotes unless it is a plain word."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NO_TEXT
    if plain:
        return text
    return '"' + "".join(map(_quoted, text)) + '"'


def _quoted(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _line(text: str, comment: str) -> str:
    """Return a line and its comment, which stands above it if both are too long for one line."""
    line = f"{text:<{_COLUMN - 2}}  # {comment}"
    if len(line) <= _WIDTH:
        return line
    return _comment(comment, " " * (len(text) - len(text.lstrip()))) + "\n" + text


def _comment(text: str, indent: str = "") -> str:
    start = f"{indent}# "
    return textwrap.fill(
        text, _WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False
    )


def _shown(words: Sequence[str]) -> str:
    """Return a command for a comment: on one line, without the values of secret variables."""
    hidden = []
    for word in words:
        key, equals, _ = word.partition("=")
        is_secret = equals and key.isidentifier() and is_secret_name(key)
        hidden.append(f"{key}=***" if is_secret else word)
    return _printable(shlex.join(hidden))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _args(args: Sequence[str]) -> Iterator[str]:
    """Yield the list of arguments, an option and its values on a line."""
    if not args:
        return
    groups: list[list[str]] = []
    for word in args:
        if not groups or word.startswith("-") or "=" in word:
            groups.append([])
        groups[-1].append(scalar(word))
    whole = ", ".join(", ".join(group) for group in groups)
    if len(whole) < 80:
        yield f"args: [{whole}]"
        return
    yield "args: ["
    yield from (f"  {', '.join(group)}," for group in groups)
    yield "]"


def _objective(guess: Guess, objective: tuple[str, str, float, str] | None) -> Iterator[str]:
    yield "objective:"
    metric, mode, why = guess.metric
    if objective is not None:
        metric, mode, target, origin = objective
        yield _line(f"  metric: {scalar(metric)}", origin)
        yield f"  mode: {mode}"
        yield _line(f"  target: {target!r}", "a little better than that; the job is done here")
    else:
        yield "  # When is the job done? `zeusrun init --try` lists the metrics of a short run."
        if guess.is_reported:
            yield _line(f"  metric: {scalar(metric)}", why)
        else:
            yield _line(f"  # metric: {scalar(metric)}", why)
        yield _line(f"  {'' if guess.is_reported else '# '}mode: {mode}", "max: higher is better")
        yield _line("  # target: 0.9", "its value at which the model is good enough")
    if guess.max_epochs is None:
        yield _line("  max_epochs: 40", "guessed: no option for epochs was found")
    else:
        epochs, origin = guess.max_epochs
        yield _line(f"  max_epochs: {epochs}", f"guessed from {origin}")


def _batch(guess: Guess) -> Iterator[str]:
    batch = guess.batch
    if batch is None:
        yield "# No batch size was found, neither in the command nor in the script. Write the batch"
        yield "# size that it trains with now, summed over all processes, and others to try. If the"
        yield "# script has no option for it, `apply: dataloader` changes its data loader."
        yield "# batch_size:"
        yield "#   default: 64"
        yield "#   candidates: [16, 32, 64, 128, 256]"
        yield "#   apply: dataloader"
        return
    sizes = ", ".join(map(str, batch.candidates(guess.ranks)))
    yield _line("batch_size:", "global: samples per optimizer step, over all processes")
    yield _line(f"  default: {batch.default}", f"guessed from {batch.why}")
    yield _line(f"  candidates: [{sizes}]", "guessed: powers of two around it")
    if batch.per_device_max is not None:
        more = "larger batch sizes accumulate gradients"
        yield _line(f"  per_device_max: {batch.per_device_max}", more)
    if not guess.takes_batch_size:
        yield "  # The script seems to have no option for it; this changes its data loader:"
        yield "  # apply: dataloader"


def _learning_rate(guess: Guess) -> Iterator[str]:
    if guess.learning_rate is None:
        yield "# No learning rate was found: the script keeps its own. To let it follow the batch"
        yield '# size, pass "${learning_rate}" in args; `apply: optimizer` needs no option:'
        rate = guess.seen_rate or 0.1
        yield f"# learning_rate: {{base: {rate:g}, scale: linear, apply: optimizer}}"
        return
    base, scale, why = guess.learning_rate
    yield _line("learning_rate:", "linear, sqrt or none: how it grows with the batch size")
    yield _line(f"  base: {base!r}", f"guessed from {why}")
    yield f"  scale: {scale}"
