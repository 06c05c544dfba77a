"""The program that starts the ranks of one host of an elastic training on several hosts."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from zeusrun.elastic.nodes.head import HeadAgent
from zeusrun.elastic.nodes.node import NodeAgent, connect
from zeusrun.elastic.processes import begin
from zeusrun.sidecar.orders import AGENT_TOKEN


def main() -> NoReturn:
    """Run the agent: ``argv`` is its plan, then the command of a rank."""
    plan, host, run_dir = begin()
    token = os.environ[AGENT_TOKEN]
    if plan.number == 0:
        sys.exit(HeadAgent(plan, host, run_dir, token).run())
    link = connect(plan, host, token)
    sys.exit(1 if link is None else NodeAgent(plan, host, run_dir, link).run())
