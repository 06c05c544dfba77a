"""``zeusrun resize``: another number of ranks for a training that runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from zeusrun.commands import options
from zeusrun.elastic.rank.board import BY_EPOCHS, FIXED, Board
from zeusrun.elastic.section import Elastic
from zeusrun.errors import UsageError
from zeusrun.launcher.rundir.ownership import files_of, lease_of
from zeusrun.view.units import plural

if TYPE_CHECKING:
    from zeusrun.launcher.rundir.ownership import RunLock
    from zeusrun.trial import Trial

_POLL_S = 0.05
_WAIT_S = 120.0


def resize(
    name: options.TrialName,
    ranks: Annotated[int, Argument(help="The number of ranks.")],
    *,
    as_json: options.AsJson = False,
) -> None:
    """Change the number of ranks of an elastic training.

    The command waits until they train. The ranks that are left keep their process. At its end, an
    epoch has used each sample once.
    """
    home, store = options.open_home(name)
    name = options.job_name(name)
    going = store.unfinished(name) if name in store.jobs() else []
    if len(going) > 1:
        several = ", ".join(sorted(each.trial for each in going))
        raise UsageError(f"several runs of {name} are going on: {several}; name the one to resize")
    trial = going[0] if going else options.find_trial(name, store)
    paths = files_of(home, trial)
    if trial.status.finished or not lease_of(trial, paths).is_held():
        raise UsageError(f"{trial.trial} does not run, so its ranks cannot be changed")
    elastic = Elastic.of(options.load_job(paths.job_copy).parts)
    if elastic is None:
        raise UsageError(
            f"{trial.trial} is not elastic: add  elastic: {{min: 1, max: 4}}  to its job file"
        )
    if not elastic.min <= ranks <= elastic.max:
        end = f"; zeusrun cancel {trial.trial} ends it" if ranks == 0 else ""
        raise UsageError(
            f"{ranks} is not between elastic.min ({elastic.min}) and elastic.max "
            f"({elastic.max}) of {trial.trial}{end}"
        )
    try:
        board = Board(paths.run_dir)
    except OSError as error:
        raise UsageError(
            f"the ranks of {trial.trial} cannot be changed now: {error.filename}: "
            f"{error.strerror}; try again once it trains"
        ) from error
    number = board.order(ranks, "a user")
    try:
        aim = _wait(trial, lease_of(trial, paths), board, number)
    except KeyboardInterrupt:
        options.tell(f"the order stays: {trial.trial} will have {plural(ranks, 'rank')}")
        raise
    done = f"{trial.trial} has {plural(aim, 'rank')}"
    if aim != ranks:
        by_epochs = any(board.place(slot).mode == BY_EPOCHS for slot in board.members)
        is_kept = by_epochs and elastic.batch_size == "kept"
        if not is_kept or trial.global_batch_size % ranks == 0:
            raise UsageError(f"{done}, because a new one has ended: see {paths.torchrun_log}")
        done += f": {ranks} would not share its batch size evenly"
    options.answer({"trial": trial.trial, "ranks": aim}, done, as_json=as_json)


def _wait(trial: Trial, lease: RunLock, board: Board, number: int) -> int:
    """Wait until as many ranks train as the agent aims at after an order; return their number."""
    deadline_t = time.monotonic() + _WAIT_S
    while lease.is_held():
        accepted, aim = board.accepted
        if accepted > number:
            raise UsageError(f"another order for {trial.trial} has followed this one")
        if board.wanted[0] < number:
            raise UsageError(f"{trial.trial} was just starting; try again")
        if any(board.place(slot).mode == FIXED for slot in board.members):
            how = f"zeusrun show {trial.trial}  says why"
            raise UsageError(f"the ranks of {trial.trial} cannot change: {how}")
        if accepted == number and _has_size(board, aim):
            return aim
        if time.monotonic() > deadline_t:
            count = plural(len(board.members), "rank")
            raise UsageError(
                f"{trial.trial} still has {count} after {_WAIT_S:g} s; it changes when the new "
                "ones have started, or the epoch has ended"
            )
        time.sleep(_POLL_S)
    raise UsageError(f"{trial.trial} has ended before its ranks changed")


def _has_size(board: Board, ranks: int) -> bool:
    members = board.members
    return len(members) == ranks and all(
        board.place(slot).generation == board.newest for slot in members
    )
