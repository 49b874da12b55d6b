"""StatefulSet: pods with a fixed number and name, created in order and deleted in reverse.

``OrderedReady`` changes one pod at a time and waits for it; ``Parallel`` creates and deletes all at once. Updates go
from the highest number down to ``partition``, one at a time. The controller creates claims of ``volumeClaimTemplates``
before their pod and keeps them after it; of the retention policies it follows ``whenDeleted: Delete``. There are no
ControllerRevision objects; the template's hash is a label.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tessera.kube.errors import AlreadyExists, ApiError
from tessera.kube.resources import PERSISTENT_VOLUME_CLAIMS, PODS, STATEFULSETS
from tessera_lab.workloads.apps.rollout import owner_hash, replicas
from tessera_lab.workloads.base.mirrors import ORPHANS, OWNER, ObjectMirrors
from tessera_lab.workloads.base.ownership import (
    Json,
    OwnershipClaims,
    is_being_deleted,
    labels_of,
    owner_reference,
    queue_controller,
    queue_itself,
)
from tessera_lab.workloads.base.pods import PodMaker, available_in, from_template, is_ready, phase
from tessera_lab.workloads.base.work_queue import Expectations, WorkQueue

HASH_LABEL = "controller-revision-hash"
NAME_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"


class StatefulSetController:
    """Keeps StatefulSets at their numbered pods."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        self._expectations = Expectations(mirrors.clock, self._queue.add)
        self._claims = OwnershipClaims(mirrors.client, STATEFULSETS, PODS)
        self._pods = PodMaker(mirrors, STATEFULSETS, self._expectations)
        mirrors.statefulsets.add_handler(queue_itself(self._queue))
        mirrors.pods.add_handler(queue_controller(STATEFULSETS, mirrors.statefulsets, self._queue, self._expectations))

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._queue.run()

    async def _reconcile(self, key: str) -> float | None:
        owner = self._mirrors.statefulsets.cache.get(key)
        if owner is None:
            self._expectations.forget(key)
            return None
        name, cache = owner["metadata"]["name"], self._mirrors.pods.cache
        orphans = [
            pod for pod in cache.by_index(ORPHANS, owner["metadata"]["namespace"]) if ordinal(pod, name) is not None
        ]
        pods = await self._claims.claim(owner, cache.by_index(OWNER, owner["metadata"]["uid"]), orphans)
        numbered = {number: pod for pod in pods if (number := ordinal(pod, name)) is not None}
        if self._expectations.are_met(key) and not is_being_deleted(owner):
            await self._manage(key, owner, numbered)
        return await self._write_status(owner, numbered)

    async def _manage(self, key: str, owner: Json, pods: dict[int, Json]) -> None:
        """Takes one step towards the wanted pods; the step's events cause the next one."""
        desired = _ordinals(owner)
        one_at_a_time = owner["spec"].get("podManagementPolicy") != "Parallel"
        ended = [pod for pod in pods.values() if phase(pod) in {"Succeeded", "Failed"} and not is_being_deleted(pod)]
        if ended:
            await self._delete(key, owner, ended)
            return
        missing = [number for number in desired if number not in pods]
        if one_at_a_time:
            blocked = next((n for n in desired if n in pods and not self._is_available(owner, pods[n])), None)
            missing = [number for number in missing if blocked is None or number < blocked][:1]
        if missing:
            self._expectations.expect(key, creations=len(missing))
            await self._create(key, owner, missing)
            return
        surplus = sorted((number for number in pods if number not in desired), reverse=True)
        leaving = any(is_being_deleted(pod) for pod in pods.values())
        sound = all(self._is_available(owner, pods[number]) for number in desired)
        if one_at_a_time:
            surplus = surplus[:1] if sound and not leaving else []
        victims = [pods[number] for number in surplus if not is_being_deleted(pods[number])]
        if victims:
            await self._delete(key, owner, victims)
        elif not leaving:
            await self._update(key, owner, pods)

    async def _update(self, key: str, owner: Json, pods: dict[int, Json]) -> None:
        """Deletes the highest outdated pod once everything above it is available."""
        strategy = owner["spec"].get("updateStrategy") or {}
        if strategy.get("type") == "OnDelete":
            return
        partition = int((strategy.get("rollingUpdate") or {}).get("partition") or 0)
        revision = _revision(owner)
        for number in sorted(pods, reverse=True):
            if number - _start(owner) < partition:
                return
            pod = pods[number]
            if labels_of(pod).get(HASH_LABEL) != revision:
                await self._delete(key, owner, [pod])
                return
            if not self._is_available(owner, pod):
                return

    async def _create(self, key: str, owner: Json, numbers: Sequence[int]) -> None:
        try:
            for claim in (claim for number in numbers for claim in new_claims(owner, number)):
                with suppress(AlreadyExists):  # the claim of an earlier pod with this number
                    namespace = owner["metadata"]["namespace"]
                    await self._mirrors.client.create(PERSISTENT_VOLUME_CLAIMS.as_dicts(), claim, namespace)
            await self._pods.create(key, owner, lambda index: new_pod(owner, numbers[index]), len(numbers))
        except AlreadyExists as error:
            raise ApiError(error.status) from error  # a pod of another owner has the name: again after a pause

    async def _delete(self, key: str, owner: Json, pods: Sequence[Json]) -> None:
        self._expectations.expect(key, deletions=[pod["metadata"]["uid"] for pod in pods])
        await self._pods.delete(key, owner, pods)

    def _is_available(self, owner: Json, pod: Json) -> bool:
        minimum = owner["spec"].get("minReadySeconds") or 0
        return available_in(pod, minimum, self._mirrors.clock.now()) == 0.0

    async def _write_status(self, owner: Json, pods: dict[int, Json]) -> float | None:
        now, minimum = self._mirrors.clock.now(), owner["spec"].get("minReadySeconds") or 0
        waits = [available_in(pod, minimum, now) for pod in pods.values()]
        revision = _revision(owner)
        updated = sum(labels_of(pod).get(HASH_LABEL) == revision for pod in pods.values())
        old = owner.get("status") or {}
        rolled = updated == len(pods) == replicas(owner)
        current = revision if rolled else old.get("currentRevision", revision)
        counts = {
            "replicas": len(pods),
            "readyReplicas": sum(map(is_ready, pods.values())),
            "currentReplicas": updated if current == revision else len(pods) - updated,
            "updatedReplicas": updated,
            "availableReplicas": waits.count(0.0),
        }
        required = {"replicas", "availableReplicas"}
        status: dict[str, Any] = {
            name: value for name, value in counts.items() if value or name in required or old.get(name)
        }
        status["updateRevision"] = revision
        status["currentRevision"] = current
        status["observedGeneration"] = owner["metadata"].get("generation", 0)
        await self._mirrors.write_status(STATEFULSETS, owner, status)
        return min((wait for wait in waits if wait), default=None)


def ordinal(pod: Json, name: str) -> int | None:
    """The pod's number in the StatefulSet of this name; None if it has none."""
    head, _, number = pod["metadata"]["name"].rpartition("-")
    return int(number) if head == name and number.isdigit() else None


def _revision(owner: Json) -> str:
    """The name of the template's revision, which pods have as a label; those of DaemonSets have its hash alone."""
    return f"{owner['metadata']['name']}-{owner_hash(owner)}"


def new_pod(owner: Json, number: int) -> Any:
    """The pod of one number."""
    name = f"{owner['metadata']['name']}-{number}"
    extra = {NAME_LABEL: name, INDEX_LABEL: str(number), HASH_LABEL: _revision(owner)}
    pod = from_template(owner["spec"]["template"], owner, STATEFULSETS, extra)
    pod["metadata"]["name"] = name
    pod["spec"]["hostname"] = name
    if owner["spec"].get("serviceName"):
        pod["spec"]["subdomain"] = owner["spec"]["serviceName"]
    claims = {claim: _claim_name(claim, owner, number) for claim in _claim_templates(owner)}
    if claims:
        others = [each for each in pod["spec"].get("volumes") or () if each["name"] not in claims]
        own = [{"name": key, "persistentVolumeClaim": {"claimName": name}} for key, name in claims.items()]
        pod["spec"]["volumes"] = [*others, *own]
    return pod


def new_claims(owner: Json, number: int) -> Sequence[Json]:
    """The claims of the pod of one number."""
    policy = owner["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    found = []
    for name, template in _claim_templates(owner).items():
        metadata = {**template["metadata"], "name": _claim_name(name, owner, number)}
        metadata["labels"] = {**(metadata.get("labels") or {}), **(owner["spec"]["selector"].get("matchLabels") or {})}
        if policy.get("whenDeleted") == "Delete":
            metadata["ownerReferences"] = [owner_reference(STATEFULSETS, owner)]
        found.append({"metadata": metadata, "spec": template["spec"]})
    return found


def _claim_templates(owner: Json) -> dict[str, Json]:
    return {each["metadata"]["name"]: each for each in owner["spec"].get("volumeClaimTemplates") or ()}


def _claim_name(template: str, owner: Json, number: int) -> str:
    return f"{template}-{owner['metadata']['name']}-{number}"


def _start(owner: Json) -> int:
    return int((owner["spec"].get("ordinals") or {}).get("start") or 0)


def _ordinals(owner: Json) -> range:
    return range(_start(owner), _start(owner) + replicas(owner))
