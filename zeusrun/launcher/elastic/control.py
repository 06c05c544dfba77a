"""What the launcher does for an elastic training: its endpoint, and provisioning."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from zeusrun.files.private import replace_file
from zeusrun.launcher.elastic.endpoint import serve
from zeusrun.launcher.elastic.provision import Provisioner
from zeusrun.launcher.rundir.layout import ask_to_cancel
from zeusrun.sidecar.board import FOLDER, Board

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zeusrun.energy.meter import Meter
    from zeusrun.jobfile.elastic_section import Elastic
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.metrics.seen import Ranks
    from zeusrun.sidecar.step_clock import StepCount
    from zeusrun.trial import Trial


@contextlib.contextmanager
def control_ranks(
    elastic: Elastic | None, paths: RunPaths, meter: Meter, trial: Trial
) -> Iterator[Callable[[Ranks, StepCount | None], None]]:
    """Yield a function that takes in the progress of a training; ``None``: of one that is fixed.

    Raises ``LaunchError`` if the address of ``elastic.listen`` is taken.
    """
    if elastic is None:
        yield lambda _, __: None
        return

    is_scaled = elastic.batch_size == "scaled"

    def samples(ranks: int) -> float:
        return trial.global_batch_size * (ranks / trial.world_size if is_scaled else 1.0)

    board, provisioner = Board(paths.run_dir, create=True), None
    board.clear(orders=True)  # of an earlier part
    if elastic.provision is not None:
        table = _open_table(paths.run_dir / FOLDER / "provision.csv", elastic.provision.by)
        provisioner = Provisioner(
            elastic.provision, elastic.max, meter.energy_between, samples, table
        )

    def advance(ranks: Ranks, count: StepCount | None) -> None:
        if provisioner is not None and count is not None:
            size = provisioner.advance(len(ranks.changes), ranks.world_size, count)
            if size is not None:
                board.order(size, "provisioning")

    stop = partial(ask_to_cancel, paths)
    with contextlib.ExitStack() as stack:
        stack.callback(board.close)
        if elastic.listen is not None:
            stack.enter_context(serve(elastic.listen, board, elastic, trial.world_size, stop))
        yield advance


def _open_table(path: Path, by: str) -> Callable[[int, float], None]:
    """Return a function that adds a row to a new table of what was measured."""
    unit = "joule" if by == "joules" else "second"
    lines = [f"ranks,samples_per_{unit}"]

    def note(ranks: int, rate: float) -> None:
        lines.append(f"{ranks},{rate:.6g}")
        with contextlib.suppress(OSError):  # a full disk
            replace_file(path, "\n".join([*lines, ""]).encode(), durable=False)

    return note
