"""Reads what the owner that a pod names belongs to, and how many pods that wants.

A LeaderWorkerSet makes a StatefulSet of its own name with the leaders, and each leader owns a StatefulSet of the
leader's name with the workers of its group (``pkg/controllers/pod_controller.go``). A group that is made anew has
another leader and another such StatefulSet, so the workers' slots are those of the group. Which groups there are says
the StatefulSet of leaders, and how many workers each has an annotation in its template. So Tessera needs no right on
LeaderWorkerSets; and who only writes such a name into a pod passes slots on within its own namespace.

A CloneSet of OpenKruise makes its pods itself; it is asked for ``spec.replicas`` where the kind is served.
"""

import re

from tessera.controller.objects.pod_info import Owner, Workload
from tessera.kube.client.client import Client
from tessera.kube.client.errors import NotFound
from tessera.kube.resources import CLONE_SETS, DEPLOYMENTS, JOBS, REPLICASETS, STATEFULSETS, Deployment, ReplicaSet

#: Annotation of the pods of a LeaderWorkerSet: the pods of a group, its leader included.
GROUP_SIZE = "leaderworkerset.sigs.k8s.io/size"
#: The revision of a Deployment that a ReplicaSet makes; its Deployment's controller writes it.
_REVISION = "deployment.kubernetes.io/revision"
_NUMBER = re.compile("[0-9]{1,9}")


class WorkloadReader:
    """Reads owners.

    Args:
        client: needs ``get`` for Deployments, Jobs, ReplicaSets, StatefulSets and CloneSets.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self, owner: Owner) -> Workload | None:
        """Returns what an owner belongs to; None if the object of its name is another.

        Raises:
            ApiError: the server refuses, or has no such object.
            OSError: it does not answer.
        """
        kind, _, name = owner.maker.partition("/")
        if kind == "Job":
            job = await self._client.get(JOBS.metadata_only(), name, owner.namespace)
            return Workload(owner.uid, 0) if str(job.metadata.uid) == owner.uid else None
        if kind == "StatefulSet":
            return await self._read_set(owner, name)
        if kind == "CloneSet":
            found = await self._client.get(CLONE_SETS, name, owner.namespace)
            return Workload(owner.uid, _replicas(found)) if str(found.metadata.uid) == owner.uid else None
        one = await self._client.get(REPLICASETS, name, owner.namespace)
        if str(one.metadata.uid) != owner.uid:
            return None
        return await self._deployment_of(one) or Workload(owner.uid, _replicas(one))

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

    async def _read_set(self, owner: Owner, name: str) -> Workload | None:
        found = await self._find_set(name, owner.namespace)
        is_one = found is not None and str(found.metadata.uid) == owner.uid
        if found is not None and is_one and not _is_of(found, "v1", "Pod"):
            return Workload(owner.uid, _replicas(found))
        group = await self._group_of(name, owner.namespace)
        if group is None and found is not None and is_one:
            return Workload(owner.uid, _replicas(found))
        return group

    async def _find_set(self, name: str, namespace: str) -> Deployment | None:
        try:
            return await self._client.get(STATEFULSETS, name, namespace)
        except NotFound:
            return None

    async def _group_of(self, name: str, namespace: str) -> Workload | None:
        """Returns what a LeaderWorkerSet wants of the workers of the leader of this name; None if there is no such."""
        leaders, _, number = name.rpartition("-")
        found = await self._find_set(leaders, namespace) if leaders and _NUMBER.fullmatch(number) else None
        if found is None or not _is_of(found, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"):
            return None
        size = found.spec.template.metadata.annotations.get(GROUP_SIZE, "")
        workers = int(size) - 1 if _NUMBER.fullmatch(size) else 0
        return Workload(f"{found.metadata.uid}/{number}", workers if int(number) < _replicas(found) else 0)


def _is_of(found: Deployment, version: str, kind: str) -> bool:
    owners = found.metadata.owner_references
    return any(each.controller and (each.api_version, each.kind) == (version, kind) for each in owners)


def _replicas(found: ReplicaSet | Deployment) -> int:
    """Returns the pods that an object wants; Kubernetes reads an absent number as 1. One that is deleted wants none."""
    if found.metadata.deletion_timestamp is not None:
        return 0
    return 1 if found.spec.replicas is None else found.spec.replicas
