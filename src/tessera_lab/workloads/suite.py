"""All workload controllers of the lab, started together."""

import asyncio
import random
from typing import Protocol

from tessera.clock import Clock
from tessera.kube.client import Client
from tessera_lab.workloads.apps.cronjob import CronJobController
from tessera_lab.workloads.apps.daemonset import DaemonSetController
from tessera_lab.workloads.apps.deployment import DeploymentController
from tessera_lab.workloads.apps.job import JobController
from tessera_lab.workloads.apps.replicaset import ReplicaSetController
from tessera_lab.workloads.apps.statefulset import StatefulSetController
from tessera_lab.workloads.autoscaling.horizontal import HorizontalPodAutoscalerController
from tessera_lab.workloads.base.mirrors import ObjectMirrors
from tessera_lab.workloads.nodes import DeviceTaintEviction, NodeLifecycle, NodeTaints, PodGarbageCollector
from tessera_lab.workloads.objects.disruption_budgets import DisruptionBudgetController
from tessera_lab.workloads.objects.endpoints import ApiServiceController, EndpointsController
from tessera_lab.workloads.objects.garbage_collector import GarbageCollector, MetadataMirror
from tessera_lab.workloads.objects.namespaces import NamespaceContents, NamespaceDeletion
from tessera_lab.workloads.objects.resource_claims import ResourceClaimController
from tessera_lab.workloads.storage import EphemeralClaims, Provisioner, VolumeController


class _Controller(Protocol):
    async def run(self) -> None: ...


class WorkloadControllers:
    """kube-controller-manager's part of the lab.

    Args:
        client: calls the API server; it must be allowed everything.
        clock: for times and pauses.
        rng: for names and jitter.
        ca: certificate authority of the API server as PEM, put into every namespace; empty where it has none.
        taint_rules: the server has DeviceTaintRules.
    """

    def __init__(
        self, client: Client, *, clock: Clock, rng: random.Random, ca: str = "", taint_rules: bool = False
    ) -> None:
        self._mirrors = ObjectMirrors(
            client, clock=clock, rng=rng, component="controller-manager", taint_rules=taint_rules
        )
        self._inventory = MetadataMirror(self._mirrors)
        self._controllers: tuple[_Controller, ...] = (
            DeploymentController(self._mirrors),
            ReplicaSetController(self._mirrors),
            DaemonSetController(self._mirrors),
            StatefulSetController(self._mirrors),
            JobController(self._mirrors),
            CronJobController(self._mirrors),
            EndpointsController(self._mirrors),
            DisruptionBudgetController(self._mirrors),
            NamespaceContents(self._mirrors, ca),
            NamespaceDeletion(self._mirrors, self._inventory),
            GarbageCollector(self._mirrors, self._inventory),
            PodGarbageCollector(self._mirrors),
            NodeTaints(self._mirrors),
            NodeLifecycle(self._mirrors),
            VolumeController(self._mirrors),
            Provisioner(self._mirrors),
            EphemeralClaims(self._mirrors),
            ResourceClaimController(self._mirrors),
            DeviceTaintEviction(self._mirrors),
            HorizontalPodAutoscalerController(self._mirrors),
            ApiServiceController(client, clock, rng),
        )

    async def run(self) -> None:
        """Runs all controllers until cancelled; none decides before every mirror is complete."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mirrors.run())
            group.create_task(self._inventory.run())
            await self._mirrors.wait_synced()
            for controller in self._controllers:
                group.create_task(controller.run())
