"""All workload controllers of the lab together: what the lab's assembler starts."""

import asyncio
import random
from typing import Protocol

from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.lab.workloads.daemonset import DaemonSetController
from tessera.lab.workloads.deployment import DeploymentController
from tessera.lab.workloads.mirrors import Mirrors
from tessera.lab.workloads.replicaset import ReplicaSetController


class _Controller(Protocol):
    async def run(self) -> None: ...


class Workloads:
    """kube-controller-manager's part of the lab.

    Args:
        client: who acts; may do everything.
        clock: for times and pauses.
        rng: for names and jitter.
    """

    def __init__(self, client: Client, *, clock: Clock, rng: random.Random) -> None:
        self._mirrors = Mirrors(client, clock=clock, rng=rng, component="controller-manager")
        self._controllers: tuple[_Controller, ...] = (
            DeploymentController(self._mirrors),
            ReplicaSetController(self._mirrors),
            DaemonSetController(self._mirrors),
        )

    async def run(self) -> None:
        """Runs all controllers until cancelled; none decides before every mirror is complete."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mirrors.run())
            await self._mirrors.wait_synced()
            for controller in self._controllers:
                group.create_task(controller.run())
