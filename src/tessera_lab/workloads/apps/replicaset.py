"""ReplicaSet: keeps ``spec.replicas`` pods.

The controller counts pods only once its mirror shows all its earlier creations and deletions, so that it never creates
too many. Of surplus pods it deletes first the least valuable: unassigned, pending, not ready, young.
"""

from typing import Any

from tessera.clock import rfc3339
from tessera.kube.errors import ApiError
from tessera.kube.resources import PODS, REPLICASETS
from tessera_lab.workloads.base.mirrors import ORPHANS, OWNER, ObjectMirrors
from tessera_lab.workloads.base.ownership import (
    Json,
    OwnershipClaims,
    is_being_deleted,
    labels_of,
    queue_controller,
    queue_itself,
)
from tessera_lab.workloads.base.pods import PodMaker, available_in, deletion_rank, from_template, is_active, is_ready
from tessera_lab.workloads.base.work_queue import Expectations, WorkQueue

#: Most pods created or deleted in one round (``BurstReplicas``).
BURST = 500


class ReplicaSetController:
    """Keeps ReplicaSets at their number of pods."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        self._expectations = Expectations(mirrors.clock, self._queue.add)
        self._claims = OwnershipClaims(mirrors.client, REPLICASETS, PODS)
        self._pods = PodMaker(mirrors, REPLICASETS, self._expectations)
        mirrors.replicasets.add_handler(queue_itself(self._queue))
        mirrors.pods.add_handler(queue_controller(REPLICASETS, mirrors.replicasets, self._queue, self._expectations))

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._queue.run()

    async def _reconcile(self, key: str) -> float | None:
        owner = self._mirrors.replicasets.cache.get(key)
        if owner is None:
            self._expectations.forget(key)
            return None
        cache = self._mirrors.pods.cache
        orphans = cache.by_index(ORPHANS, owner["metadata"]["namespace"])
        pods = await self._claims.claim(owner, cache.by_index(OWNER, owner["metadata"]["uid"]), orphans)
        active = [pod for pod in pods if is_active(pod)]
        refusal: ApiError | None = None
        if self._expectations.are_met(key) and not is_being_deleted(owner):
            try:
                await self._scale(key, owner, active)
            except ApiError as error:
                refusal = error
        again = await self._write_status(owner, active, refusal)
        if refusal is not None:
            raise refusal
        return again

    async def _scale(self, key: str, owner: Json, active: list[Json]) -> None:
        excess = len(active) - _replicas(owner)
        if excess < 0:
            number = min(-excess, BURST)
            self._expectations.expect(key, creations=number)
            await self._pods.create(key, owner, lambda _: new_pod(owner), number)
        elif excess > 0:
            victims = sorted(active, key=deletion_rank)[: min(excess, BURST)]
            self._expectations.expect(key, deletions=[pod["metadata"]["uid"] for pod in victims])
            await self._pods.delete(key, owner, victims)

    async def _write_status(self, owner: Json, active: list[Json], refusal: ApiError | None) -> float | None:
        now = self._mirrors.clock.now()
        waits = [available_in(pod, owner["spec"].get("minReadySeconds") or 0, now) for pod in active]
        status = {
            "replicas": len(active),
            "fullyLabeledReplicas": sum(_has_all_labels(owner, pod) for pod in active),
            "readyReplicas": sum(map(is_ready, active)),
            "availableReplicas": waits.count(0.0),
            "observedGeneration": owner["metadata"].get("generation", 0),
            "conditions": _conditions(owner, len(active), refusal, rfc3339(now)),
        }
        old = owner.get("status") or {}
        # The API omits counts of zero, so a missing count is no change.
        news = {name: value for name, value in status.items() if value or old.get(name)}
        await self._mirrors.write_status(REPLICASETS, owner, news)
        return min((wait for wait in waits if wait), default=None)


def new_pod(owner: Json) -> Any:
    """The next pod of a ReplicaSet; the server completes its name."""
    pod = from_template(owner["spec"]["template"], owner, REPLICASETS)
    pod["metadata"]["generateName"] = owner["metadata"]["name"] + "-"
    return pod


def _replicas(owner: Json) -> int:
    replicas = owner["spec"].get("replicas")
    return 1 if replicas is None else int(replicas)


def _has_all_labels(owner: Json, pod: Json) -> bool:
    desired = (owner["spec"]["template"].get("metadata") or {}).get("labels") or {}
    labels = labels_of(pod)
    return all(labels.get(name) == value for name, value in desired.items())


def _conditions(owner: Json, number: int, refusal: ApiError | None, now: str) -> list[Json]:
    """Returns ReplicaFailure while pods cannot be created or deleted, with the text of the first refusal.

    A later refusal names another pod; writing it would change the object, wake this controller and be refused again.
    """
    others = [each for each in (owner.get("status") or {}).get("conditions") or () if each["type"] != "ReplicaFailure"]
    if refusal is None:
        return others
    before = [each for each in (owner.get("status") or {}).get("conditions") or () if each["type"] == "ReplicaFailure"]
    if before:
        return [*others, *before]
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate" if number < _replicas(owner) else "FailedDelete",
        "message": refusal.message,
        "lastTransitionTime": now,
    }
    return [*others, failure]
