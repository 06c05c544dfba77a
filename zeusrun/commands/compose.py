"""Puts together all that a submit of a job needs."""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zeusrun.bandit.registry import create_policy
from zeusrun.choice.problem import Machine
from zeusrun.commands.options import open_own
from zeusrun.gpu.registry import job_devices
from zeusrun.history.base import NEWEST
from zeusrun.jobfile.plugged import count_ranks
from zeusrun.launcher.context import Submission
from zeusrun.launcher.processes.command import Torchrun, find_torchrun
from zeusrun.tariff import Tariffs
from zeusrun.trial import Hardware

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zeusrun.choice.problem import Forced
    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.events import Emit
    from zeusrun.run_on.registry import Allocation

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def compose(
    spec: JobSpec,
    forced: Forced | None = None,
    gpus: Sequence[str] | None = None,
    *,
    place: tuple[Path, History] | None = None,
    signals: Sequence[int] = (),
    emit: Emit | None = None,
    allocation: Allocation | None = None,
) -> Submission:
    """Build everything that a submit needs. With ``run_on``, connect to the other hosts.

    Args:
        spec: The job.
        forced: The user's own choice; ``None`` to ask the policy.
        gpus: UUIDs; ``None`` for all visible ones.
        place: The home and the history; ``None`` for those of the job, to read them.
        signals: Those that have come; they end the wait for other hosts.
        emit: Gets what happens while other hosts join; ``None``: nobody is asked to join.
        allocation: The job of a scheduler that this is the batch step of.
    """
    home, history = place or open_own(spec)
    inherited = dict(os.environ)
    if gpus:
        visible = {_VISIBLE: ",".join(gpus)}
        inherited |= visible
        if _VISIBLE in spec.env:
            spec = spec.model_copy(update={"env": MappingProxyType({**spec.env, **visible})})
    # CUDA_VISIBLE_DEVICES in the job's `env` decides which GPUs the job uses.
    environment = {**inherited, **spec.env}
    per_node, cluster, run_on = spec.launch.nproc_per_node, None, spec.run_on
    planned = None
    if run_on is not None and run_on.scheduler is not None:
        planned = None if allocation else _plan_machine(spec, history)
        nodes = () if allocation is None else allocation.hosts
        run_on = run_on.model_copy(update={"hosts": nodes}) if nodes[1:] else None
    # A run on another machine needs no torch here.
    torchrun = find_torchrun() if planned is None else Torchrun((), "", frozenset())
    if options := spec.launch.torchrun:
        from zeusrun.jobfile.torchrun_options import option_words  # noqa: PLC0415 - few jobs have any

        torchrun = replace(torchrun, more=option_words(options, torchrun.flags, spec.source))
    with contextlib.ExitStack() as stack:
        if run_on is not None:
            from zeusrun.run_on.hosts import cluster as hosts  # noqa: PLC0415 - few jobs have it

            cluster, per_node = hosts.open_cluster(spec, run_on, signals, emit)
            stack.callback(cluster.close)
            cluster = cluster if cluster.nodes else None
        if planned is None:
            most = spec.most_ranks
            if cluster is not None:
                most = hosts.most_ranks(spec, per_node, 1 + len(cluster.nodes))
            devices, world_size = job_devices(per_node, environment, most)
        else:
            devices, world_size = [], planned.hardware.world_size
        for device in devices:
            stack.callback(device.close)
        if cluster is not None:
            hosts.prepare(cluster, spec, home, devices, world_size)
            devices = [*devices, *(device for node in cluster.nodes for device in node.devices)]
            world_size += sum(len(node.ranks) for node in cluster.nodes)
        spec.check_world_size(world_size)
        submission = Submission(
            spec=spec,
            history=history,
            policy=create_policy(spec.policy.name),
            devices=devices,
            world_size=world_size,
            torchrun=torchrun,
            home=home,
            environment=inherited,
            forced=forced,
            tariffs=_read_tariffs(spec),
            read_tariffs=functools.partial(_read_tariffs, spec),
            describe_machine=functools.partial(_describe_machine, home),
            cluster=cluster,
            allocation=allocation,
            planned=planned,
        )
        stack.pop_all()
    return submission


def _read_tariffs(spec: JobSpec) -> Tariffs:
    """Return what energy costs the job; raises ``JobFileError`` if a file of it is wrong."""
    if (spec.price, spec.carbon, spec.pue) == (None, None, None):
        return Tariffs()
    from zeusrun.jobfile.tariffs import load_tariffs  # noqa: PLC0415 - few jobs have a tariff

    return load_tariffs(spec)


def _describe_machine(home: Path) -> dict[str, Any]:
    from zeusrun.commands.machine import describe_machine  # noqa: PLC0415 - few have a server

    return describe_machine(home)


def _plan_machine(spec: JobSpec, history: History) -> Machine:
    """Return the machine of a job that will run on nodes that are not known yet.

    It is that of its last run in a scheduler on as many nodes, with as many ranks.
    """
    nodes, ranks = spec.launch.nnodes or 1, count_ranks(dict(spec))
    for last in reversed(history.trials(spec.name, NEWEST)):
        if last.allocation and last.host_count == nodes and ranks in {None, last.world_size}:
            source = last.energy_source
            return Machine(
                hardware=last.hardware,
                energy_measured=None if source is None else source.measured,
                max_power_w=last.max_power_w,
            )
    return Machine(hardware=Hardware(ranks or nodes, None, 0, nodes))
