"""Asks the API server whether the owners exist that pods name: those of a pod, and those of its gates.

Whoever creates a pod writes its owner. Only a pod that would inherit an age
(:mod:`tessera.controller.cluster.waiting_ages`) or slots (:attr:`.Proposer.unknown_owners`)
is asked about, with one or two small requests for each owner. So no pod inherits by a made-up one.

The gates of some operators go after Tessera's. A gate's name alone says nothing: any author of a pod can write it.
Where its owner's API group is not served, nobody removes the gate, and Tessera promises nothing before it is gone, as
with any gate of others. It costs one small request a minute, later less.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from itertools import chain, islice

from tessera.api.names import LAST_GATES
from tessera.controller.leadership.informers import ClusterInput
from tessera.controller.objects.owners import Owner, Workload
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import LastGatesObserved, OwnerLookedUp
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import (
    DEPLOYMENTS,
    JOBS,
    REPLICASETS,
    STATEFULSETS,
    Deployment,
    PartialObject,
    ReplicaSet,
)
from tessera.kube.runtime import KubeRuntime
from tessera.kube.watch.informer import LOOK_AGAIN, LOOK_SELDOM

#: Owners that are asked about at the same time.
_AT_ONCE = 8
#: The revision of a Deployment that a ReplicaSet makes; its Deployment's controller writes it.
_REVISION = "deployment.kubernetes.io/revision"
_NUMBER = re.compile("[0-9]{1,9}")
#: Seconds until an owner is asked about again of which the server could not say anything. The pod waits as a young one.
_AGAIN = 5.0


def unknown_owners(slicer: Slicer) -> Iterator[Owner]:
    """Returns the owners of pods about which somebody should ask the API server."""
    return chain(slicer.state.ages.unknown_owners, *(each.unknown_owners for each in slicer.proposers))


class PodOwners(ClusterInput):
    """Asks about the owners that the slicer does not know (:func:`unknown_owners`).

    It needs ``get`` for Deployments, Jobs, ReplicaSets and StatefulSets.
    """

    def __init__(self, runtime: KubeRuntime, slicer: Slicer, changed: Callable[[], None]) -> None:
        super().__init__(runtime, slicer, changed)
        self._due = asyncio.Event()

    def look(self) -> None:
        """Begins to ask if there is something to ask about."""
        if any(True for _ in unknown_owners(self._slicer)):
            self._due.set()

    async def run(self) -> None:
        """Asks until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            while owners := [*dict.fromkeys(islice(unknown_owners(self._slicer), _AT_ONCE))]:
                answers = await asyncio.gather(*map(self._look_up, owners))
                for answer in answers:
                    if answer is not None:
                        self._pass_on(answer)
                if None in answers:
                    await self._clock.sleep(_AGAIN)

    async def _look_up(self, owner: Owner) -> OwnerLookedUp | None:
        """Returns what an owner of this name and UID belongs to; None if that is not known."""
        try:
            return OwnerLookedUp(owner, await self._read(owner))
        except (ApiError, OSError) as error:
            is_final = isinstance(error, ApiError) and error.code < 500 and error.code not in {401, 408, 429}
            return OwnerLookedUp(owner, None) if is_final else None

    async def _read(self, owner: Owner) -> Workload | None:
        """Returns what an owner belongs to; None if the object of its name is another."""
        kind, _, name = owner.maker.partition("/")
        found: PartialObject | ReplicaSet | Deployment
        match kind:
            case "Job":
                found = await self._client.get(JOBS.metadata_only(), name, owner.namespace)
            case "ReplicaSet":
                found = await self._client.get(REPLICASETS, name, owner.namespace)
            case _:  # the third kind of tessera.controller.objects.pod_info.MAKERS
                found = await self._client.get(STATEFULSETS, name, owner.namespace)
        if str(found.metadata.uid) != owner.uid:
            return None
        if isinstance(found, ReplicaSet) and (workload := await self._deployment_of(found)) is not None:
            return workload
        return Workload(owner.uid, _replicas(found))

    async def _deployment_of(self, found: ReplicaSet) -> Workload | None:
        """Returns what a ReplicaSet's Deployment wants; None without one."""
        owners = found.metadata.owner_references
        name = next((each for each in owners if each.controller and each.kind == "Deployment"), None)
        if name is None:
            return None
        deployment = await self._client.get(DEPLOYMENTS, name.name, found.metadata.namespace)
        if deployment.metadata.uid != name.uid:
            return None
        revision = found.metadata.annotations.get(_REVISION, "")
        return Workload(
            name.uid,
            _replicas(deployment),
            int(revision) if _NUMBER.fullmatch(revision) else 0,
            name.name,
            deployment.keeps_old_pods,
            max(0, deployment.spec.min_ready_seconds),
            max(0, deployment.spec.progress_deadline_seconds),
        )


def _replicas(found: PartialObject | ReplicaSet | Deployment) -> int:
    """Returns the pods that an object wants; Kubernetes reads an absent number as 1. One that is deleted wants none."""
    if isinstance(found, PartialObject) or found.metadata.deletion_timestamp is not None:
        return 0
    return 1 if found.spec.replicas is None else found.spec.replicas


class GateOwners(ClusterInput):
    """Asks now and then which of these operators exist; every account may ask which API groups a server serves."""

    def __init__(self, runtime: KubeRuntime, slicer: Slicer, changed: Callable[[], None]) -> None:
        super().__init__(runtime, slicer, changed)
        #: The last answers; None before the first.
        self._known: frozenset[str] | None = None

    async def run(self) -> None:
        """Looks until cancelled."""
        pause = LOOK_AGAIN
        while True:
            await self._clock.sleep(pause)
            pause = min(pause * 2, LOOK_SELDOM)
            await self.look()

    async def look(self) -> None:
        """Looks once; without an answer the former one counts, and at first none exists."""
        try:
            found = frozenset([gate for gate, group in LAST_GATES.items() if await self._client.serves(group)])
        except (ApiError, ConnectionError, TimeoutError):
            found = self._known or frozenset()
        if found != self._known:
            self._known = found
            self._pass_on(LastGatesObserved(found))
