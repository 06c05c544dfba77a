"""What the launcher does for an elastic training: its endpoint, and provisioning."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from zeusrun.launcher.elastic.endpoint import serve
from zeusrun.launcher.elastic.provision import Provisioner
from zeusrun.sidecar.board import Board

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zeusrun.energy.meter import Meter
    from zeusrun.jobfile.elastic_section import Elastic
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.metrics.seen import Ranks
    from zeusrun.sidecar.step_clock import StepCount


@contextlib.contextmanager
def control_ranks(
    elastic: Elastic | None, paths: RunPaths, meter: Meter, first: int
) -> Iterator[Callable[[Ranks, StepCount | None], None]]:
    """Yield a function that takes in the progress of a training; ``None``: of one that is fixed.

    Raises ``LaunchError`` if the address of ``elastic.listen`` is taken.
    """
    if elastic is None:
        yield lambda _, __: None
        return
    board, provisioner = Board(paths.run_dir, create=True), None
    board.clear(orders=True)  # of an earlier part
    if elastic.provision is not None:
        provisioner = Provisioner(elastic.provision, elastic.max, meter.energy_between)

    def advance(ranks: Ranks, count: StepCount | None) -> None:
        if provisioner is not None and count is not None:
            size = provisioner.advance(len(ranks.changes), ranks.world_size, count)
            if size is not None:
                board.order(size, "provisioning")

    with contextlib.ExitStack() as stack:
        if elastic.listen is not None:
            stack.enter_context(serve(elastic.listen, board, elastic, first))
        yield advance
