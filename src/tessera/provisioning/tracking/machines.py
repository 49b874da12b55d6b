"""Reads Machines and NodeClaims of autoscalers: the nodes that they become, and the times of their requests.

A cluster may not serve such a kind. Everybody may read discovery, so a cluster without Cluster API costs one small
request a minute, later less, and no log line. A kind is watched once it is served.
"""

import dataclasses
import logging
import random
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import Machine, Resource
from tessera.kube.watch.informer import Informer, WatchEvent
from tessera.provisioning.tracking.timestamps import KARPENTER_LABEL, parse_time, true_since

#: Labels of machines that name their node group: Karpenter, Cluster API (two), OpenShift.
_GROUPS = (
    KARPENTER_LABEL,
    "topology.cluster.x-k8s.io/deployment-name",
    "cluster.x-k8s.io/set-name",
    "machine.openshift.io/cluster-api-machineset",
)
#: Conditions that show that a machine's virtual machine exists: Cluster API, OpenShift, Karpenter.
_VM_CONDITIONS = frozenset({"InfrastructureReady", "InstanceExists", "Launched"})


class MachineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The Machine or NodeClaim that a node was made from.

    Attributes:
        resource: plural and group, ``machines.cluster.x-k8s.io``.
        namespace: the object's namespace; empty for a NodeClaim.
        name: the object's name.
        uid: the object's UID.
        node: the node that it became; empty if none yet.
        provider_id: provider id of its virtual machine; empty if not known yet.
        requested: when it was created.
        vm_created: when its virtual machine existed.
        group: the node group.
        annotations: its annotations, which may forbid its replacement.
        deleting: it is being deleted.
    """

    resource: str
    namespace: str
    name: str
    uid: str
    node: str = ""
    provider_id: str = ""
    requested: float | None = None
    vm_created: float | None = None
    group: str = ""
    annotations: Mapping[str, str] = {}
    deleting: bool = False


def read_machine(machine: Machine, resource: Resource[Machine]) -> MachineRequest:
    """Reads a Machine or NodeClaim."""
    status, labels = machine.status, machine.metadata.labels
    newer = status.v1beta2.conditions if status.v1beta2 is not None else ()
    conditions = (*status.conditions, *newer)
    node = status.node_ref.name if status.node_ref is not None else status.node_name
    return MachineRequest(
        resource=resource.label,
        namespace=machine.metadata.namespace,
        name=machine.metadata.name,
        uid=machine.metadata.uid,
        node=node,
        provider_id=machine.spec.provider_id or status.provider_id,
        requested=parse_time(machine.metadata.creation_timestamp),
        vm_created=next(
            (true_since(conditions, name) for name in _VM_CONDITIONS if true_since(conditions, name) is not None), None
        ),
        group=next((labels[name] for name in _GROUPS if labels.get(name)), ""),
        annotations=machine.metadata.annotations,
        deleting=machine.metadata.deletion_timestamp is not None,
    )


T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Seconds until the second check if a group is served, and most between two later ones: a cluster gets an autoscaler
#: once, and most clusters never get one.
LOOK_AGAIN, LOOK_SELDOM = 60.0, 600.0


class _Version(msgspec.Struct, frozen=True):
    version: str = ""


class _Group(msgspec.Struct, frozen=True, rename="camel"):
    """``metav1.APIGroup``."""

    preferred_version: _Version = _Version()


class OptionalKind(Generic[T]):
    """Watches one kind that the cluster may not serve.

    Args:
        client: the API server.
        resource: the kind; of its versions, the server's preferred one is read.
        clock: the time, for pauses.
        rng: random numbers for jitter.
        on_event: see :meth:`~tessera.kube.watch.informer.Informer.add_handler`.
        look_seldom: most seconds between two looks if the kind is served.

    Attributes:
        resource: the kind, at the version that is read.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        *,
        clock: Clock,
        rng: random.Random,
        on_event: Callable[[WatchEvent[T]], None],
        look_seldom: float = LOOK_SELDOM,
    ) -> None:
        self.resource = resource
        self._look_seldom = look_seldom
        self._client = client
        self._clock = clock
        self._rng = rng
        self._on_event = on_event

    async def run(self) -> None:
        """Waits until the kind is served and then watches it, until cancelled."""
        pause = LOOK_AGAIN
        while (version := await self._version()) is None:
            await self._clock.sleep(pause)
            pause = min(pause * 2, self._look_seldom)
        self.resource = dataclasses.replace(self.resource, version=version)
        _log.info("follows %s at %s", self.resource.label, version)
        informer = Informer(self._client, self.resource, clock=self._clock, rng=self._rng)
        informer.add_handler(self._on_event)
        await informer.run()

    async def _version(self) -> str | None:
        """The server's preferred version; None if the group is not served, or the server does not answer."""
        try:
            answer = await self._client.request("GET", f"/apis/{self.resource.group}")
            return msgspec.json.decode(answer.body, type=_Group).preferred_version.version or self.resource.version
        except (ApiError, ConnectionError, TimeoutError, msgspec.DecodeError):
            return None
