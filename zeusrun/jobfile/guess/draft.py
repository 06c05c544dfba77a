"""Writes a guessed job as the text of a job file, with comments."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from typing import TYPE_CHECKING

from zeusrun.jobfile.guess.command import SECRET_FILE
from zeusrun.jobfile.guess.script import LATE_SAVE
from zeusrun.jobfile.secrets import mask_words
from zeusrun.target import likely_mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from zeusrun.jobfile.guess.guess import Guess

_PLAIN = re.compile(r"(?:--?)?[A-Za-z][\w./-]*|(?:\.{0,2}/)+[\w./-]*|\.\.", re.ASCII)
_WIDTH = 80  # of the narrowest usual terminal
_COLUMN = 38  # where comments begin


def job_name(path: Path) -> str:
    """Return the name of the job that a file describes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("._-")[:64] or "job"


def write_draft(
    guess: Guess,
    words: Sequence[str],
    path: Path,
    workdir: str = ".",
    objective: tuple[str, str, float, str] | None = None,
) -> str:
    """Return the text of a job file at ``path`` for a command.

    ``workdir`` is where the command runs, relative to the folder of the file. ``objective`` is
    metric, mode, target, and where they are from; ``None`` if they are not known.
    """
    launched, script = guess.launched, guess.launched.script
    nproc = launched.nproc_per_node
    if script is not None and workdir != "." and not script.startswith("/"):
        script = f"{workdir}/{script}"
    ranks, options = guess.ranks * launched.nnodes, launched.torchrun.items()
    processes = "one process" if ranks == 1 else f"{ranks} processes"
    lines = [
        "# Written by `zeusrun init` for this command:",
        f"#   {_printable(shlex.join(mask_words(words)))}",
        f"# Check the guesses, then run: zeusrun submit {_printable(str(path))}",
        *(_comment(f"Warning: {text}.") for text in guess.warnings),
        "",
        _line(f"name: {job_name(path)}", "all runs of a name share one history"),
        _line(f"module: {_scalar(str(launched.module))}", "as with python -m")
        if script is None
        else _line(f"script: {_escaped(script)}", "relative to this file"),
        *([] if workdir == "." else [_line(f"workdir: {_escaped(workdir)}", "where it runs")]),
        *_args(launched.args),
        *(["env:"] if launched.env else []),
        *(f"  {name}: {_escaped(value)}" for name, value in launched.env.items()),
        "",
        "launch:",
        _line(f"  nproc_per_node: {nproc}", f"the batch sizes are for {processes}"),
        *(
            [_line("  distributed: false", "without torchrun's variables")]
            if guess.ranks == 1 and not launched.distributed
            else []
        ),
        *([f"  max_restarts: {launched.max_restarts}"] if launched.max_restarts else []),
        *(["  torchrun:"] if launched.torchrun else []),
        *(f"    {name}: {_scalar(text) if text else 'true'}" for name, text in options),
        "",
        *_objective(guess, objective),
        "",
        *_metrics(guess),
        *_batch(guess),
        "",
        *_learning_rate(guess),
    ]
    return "\n".join(lines) + "\n"


def _objective(guess: Guess, objective: tuple[str, str, float, str] | None) -> Iterator[str]:
    yield "objective:"
    late = guess.late_save is not None
    then = "a run's cost ends there" if late else "a run ends when it is reached"
    if objective is not None:
        metric, mode, target, origin = objective
        yield _line(f"  metric: {_scalar(metric)}", origin)
        yield f"  mode: {mode}"
        yield _line(f"  target: {target!r}", f"a proposal; {then}")
    else:
        yield "  # Remove the # from the next three lines, and correct them (docs/metrics.md)."
        yield _line(f"  # metric: {guess.metric}", "`init --try` lists those of a run")
        monitored = guess.monitor[1] if guess.metric == guess.monitor[0] else None
        known = monitored or likely_mode(guess.metric) or "max or min"
        yield _line(f"  # mode: {known}", "max: higher is better, or min")
        yield _line("  # target: 0.9", "a run ends when the metric reaches it")
    epochs, count, why = guess.max_epochs, 40, "a guess: no option for it was found"
    if epochs is None and guess.seen_epochs is not None:
        count, why = guess.seen_epochs, "as the run of --try showed"
    if epochs is not None:
        count, why = int(epochs.value), f"guessed from {epochs.origin}"
    yield _line(f"  max_epochs: {count}", why)
    if late:
        yield _line("  on_target: continue", f"line {guess.late_save} of the script {LATE_SAVE}")


def _metrics(guess: Guess) -> Iterator[str]:
    if guess.pattern is not None:
        yield _line("metrics:", "groups are metrics: docs/metrics.md")
        yield "  source: stdout"
        yield "  pattern: '" + guess.pattern.replace("'", "''") + "'"
        yield ""


def _batch(guess: Guess) -> Iterator[str]:
    batch = guess.batch
    if batch is None:
        yield _comment(
            "The script seems to have no option for its batch size. If it has a DataLoader, remove "
            "the # below, and write its batch size as the default, summed over all processes; "
            "`zeusrun init --try` does both if it sees one feed the steps. See docs/hooks.md."
        )
        yield "# batch_size: {default: 64, candidates: [16, 32, 64, 128, 256], apply: dataloader}"
        return
    sizes = ", ".join(map(str, batch.candidates(guess.ranks * guess.launched.nnodes)))
    yield _line("batch_size:", "global: samples per optimizer step")
    yield _line(f"  default: {batch.default}", f"guessed from {batch.why}")
    yield _line(f"  candidates: [{sizes}]", "powers of two times the default")
    if (limit := batch.per_device_max) is not None:
        yield _line(f"  per_device_max: {limit}", "larger shares accumulate gradients")
    if batch.by_hook:
        yield _line("  apply: dataloader", "it has no option: docs/hooks.md")


def _learning_rate(guess: Guess) -> Iterator[str]:
    if guess.learning_rate is None and guess.scale == "none":
        yield "# No learning_rate, because the script scales its own: see the warning above."
        return
    if guess.learning_rate is None:
        yield _comment(
            "The script keeps its own learning rate. To let zeusrun scale it, remove the # "
            "below; base is the rate with which the script builds its optimizer, and the 0.1 is "
            "only an example (docs/hooks.md)."
        )
        yield f"# learning_rate: {{base: 0.1, scale: {guess.scale}, apply: optimizer}}"
        return
    rate, scale = guess.learning_rate, guess.scale
    yield "learning_rate:"
    yield _line(f"  base: {rate.value!r}", f"guessed from {rate.origin}")
    yield _line(f"  scale: {scale}", "how it grows with the batch size")


def _args(words: Sequence[str]) -> Iterator[str]:
    """Yield the list of arguments, an option and its values on a line."""
    groups: list[list[str]] = []
    for word in words:
        if not groups or word.startswith("-") or "=" in word:
            groups.append([])
        groups[-1].append(_scalar(word))
    if words:
        yield from ("args: [", *(f"  {', '.join(group)}," for group in groups), "]")


def _scalar(text: str) -> str:
    """Return a text as YAML, in quotes unless it is a plain word or names the file of a secret."""
    if _PLAIN.fullmatch(text) and text.lower() not in {"true", "false", "null"}:
        return text
    if SECRET_FILE.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _escaped(text: str) -> str:
    return _scalar(text.replace("$", "$$"))


def _line(text: str, comment: str) -> str:
    """Return a line and its comment, which stands above it if both are too long for one line."""
    line = f"{text:<{_COLUMN}}  # {comment}"
    if len(line) <= _WIDTH:
        return line
    return _comment(comment, " " * (len(text) - len(text.lstrip()))) + "\n" + text


def _comment(text: str, indent: str = "") -> str:
    start = f"{indent}# "
    return textwrap.fill(
        text, _WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False
    )


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
