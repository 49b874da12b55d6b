"""One mirror of each resource for all controllers, and their shared functions for writing.

Objects are plain dicts, since controllers copy parts that they need not decode (pod templates). Callers must not change
an object of a mirror.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.errors import Conflict, NotFound
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.informer import Informer
from tessera.kube.resources import (
    CONFIGMAPS,
    CRONJOBS,
    DAEMONSETS,
    DEPLOYMENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICASETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFULSETS,
    STORAGE_CLASSES,
)
from tessera.kube.resources.meta import Resource
from tessera_lab.scheduler.claim_binding import DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tessera_lab.simulation.supervision import LabInformer
from tessera_lab.workloads.base.ownership import Json, controller_of

#: Indexes: owned objects by their controller's UID; objects without a controller by namespace.
OWNER = "owner"
ORPHANS = "orphans"
NODE = "node"

AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True, dict[str, Any])

#: Events that may wait to be sent; a burst of a thousand pods makes several thousand.
_EVENT_CAPACITY = 20_000


def _owner(item: Json) -> Iterable[str]:
    owner = controller_of(item)
    return () if owner is None else (str(owner["uid"]),)


def _orphan(item: Json) -> Iterable[str]:
    return (str(item["metadata"].get("namespace", "")),) if controller_of(item) is None else ()


def _node(pod: Json) -> Iterable[str]:
    name = pod["spec"].get("nodeName")
    return (str(name),) if name else ()


_OWNED: Mapping[str, Any] = {OWNER: _owner, ORPHANS: _orphan}


class ObjectMirrors:
    """The resources that workload controllers watch.

    Args:
        client: reads and writes.
        clock: for times and pauses.
        rng: for names and jitter.
        component: source of the events.
        taint_rules: the server has DeviceTaintRules.
    """

    def __init__(
        self, client: Client, *, clock: Clock, rng: random.Random, component: str, taint_rules: bool = False
    ) -> None:
        self.client = client
        self.clock = clock
        self.rng = rng
        later = (RESOURCE_CLAIMS.group, AUTOSCALERS.group, CRONJOBS.plural)
        self._own_rngs = {name: random.Random(name) for name in later}
        self._recorder = EventRecorder(client, component=component, clock=clock, rng=rng, capacity=_EVENT_CAPACITY)
        self.pods = self._mirror(PODS, {**_OWNED, NODE: _node})
        self.replicasets = self._mirror(REPLICASETS, _OWNED)
        self.deployments = self._mirror(DEPLOYMENTS)
        self.statefulsets = self._mirror(STATEFULSETS)
        self.daemonsets = self._mirror(DAEMONSETS)
        self.jobs = self._mirror(JOBS, _OWNED)
        self.nodes = self._mirror(NODES)
        self.services = self._mirror(SERVICES)
        self.namespaces = self._mirror(NAMESPACES)
        self.service_accounts = self._mirror(SERVICE_ACCOUNTS)
        self.config_maps = self._mirror(CONFIGMAPS)
        self.node_leases = LabInformer(client, LEASES.as_dicts(), clock=clock, rng=rng, namespace="kube-node-lease")
        self.claims = self._mirror(PERSISTENT_VOLUME_CLAIMS)
        self.volumes = self._mirror(PERSISTENT_VOLUMES)
        self.budgets = self._mirror(POD_DISRUPTION_BUDGETS)
        self.storage_classes = self._mirror(STORAGE_CLASSES)
        self.resource_claims = self._mirror(RESOURCE_CLAIMS, _OWNED)
        self.resource_slices = self._mirror(RESOURCE_SLICES)
        self.autoscalers = self._mirror(AUTOSCALERS)
        self.cron_jobs = self._mirror(CRONJOBS)
        self.device_taint_rules = self._mirror(DEVICE_TAINT_RULES) if taint_rules else None

    def _mirror(self, resource: Resource[Any], indexes: Mapping[str, Any] | None = None) -> Informer[dict[str, Any]]:
        rng = self.rng_of(resource)
        return LabInformer(self.client, resource.as_dicts(), clock=self.clock, rng=rng, indexes=indexes)

    def rng_of(self, resource: Resource[Any]) -> random.Random:
        """Random numbers for one mirror's jitter; later kinds have their own, so that no experiment changes by them."""
        return self._own_rngs.get(resource.plural) or self._own_rngs.get(resource.group, self.rng)

    @property
    def all(self) -> tuple[Informer[dict[str, Any]], ...]:
        """Every mirror."""
        return tuple(each for each in vars(self).values() if isinstance(each, Informer))

    async def run(self) -> None:
        """Keeps the mirrors up to date and sends events, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recorder.run())
            for mirror in self.all:
                group.create_task(mirror.run())

    async def wait_synced(self) -> None:
        """Returns once every mirror is complete; no controller may decide before."""
        for mirror in self.all:
            await mirror.wait_synced()

    def record_event(
        self, resource: Resource[Any], about: Json, reason: str, note: str, *, warning: bool = False
    ) -> None:
        """Records an event about an object."""
        metadata = about["metadata"]
        reference = make_reference(resource, metadata["name"], metadata.get("namespace", ""), metadata["uid"])
        self._recorder.record(reference, reason, note, type="Warning" if warning else "Normal")

    async def write_status(self, resource: Resource[Any], item: Json, status: Mapping[str, Any]) -> None:
        """Writes the fields of ``status`` that differ from the object's; does nothing if the object is gone."""
        old = item.get("status") or {}
        changed = {name: value for name, value in status.items() if old.get(name) != value}
        if not changed:
            return
        metadata = item["metadata"]
        with suppress(NotFound, Conflict):  # deleted meanwhile, and another may be there under its name
            await self.client.merge_patch(
                resource.as_dicts(),
                metadata["name"],
                {"status": changed},
                metadata.get("namespace"),
                subresource="status",
                uid=metadata["uid"],
            )
