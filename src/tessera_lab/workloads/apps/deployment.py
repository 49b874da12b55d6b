"""Deployment: one ReplicaSet for each template, rolled from the old ones to the newest."""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.clock import parse_rfc3339, rfc3339
from tessera.kube.errors import AlreadyExists, NotFound
from tessera.kube.resources import DEPLOYMENTS, REPLICASETS
from tessera.kube.resources.meta import key_of
from tessera_lab.workloads.apps import rollout
from tessera_lab.workloads.base.mirrors import ORPHANS, OWNER, ObjectMirrors
from tessera_lab.workloads.base.ownership import (
    Json,
    OwnershipClaims,
    controlled_by,
    controller_of,
    is_being_deleted,
    owner_reference,
    queue_controller,
    queue_itself,
)
from tessera_lab.workloads.base.pods import condition, is_active
from tessera_lab.workloads.base.work_queue import WorkQueue

#: ``progressDeadlineSeconds`` if it is left out.
DEADLINE = 600


class DeploymentController:
    """Rolls Deployments out."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._client = mirrors.client
        self._claims = OwnershipClaims(mirrors.client, DEPLOYMENTS, REPLICASETS)
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        mirrors.deployments.add_handler(queue_itself(self._queue))
        mirrors.replicasets.add_handler(queue_controller(DEPLOYMENTS, mirrors.deployments, self._queue))
        mirrors.pods.add_handler(self._on_pod)

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._queue.run()

    def _on_pod(self, event: Any) -> None:
        """Queues the Deployment of a deleted pod: a Recreate rollout continues when the last old pod is gone."""
        if event.kind != "DELETED":
            return
        owner = controller_of(event.object)
        if owner is None or owner["kind"] != REPLICASETS.kind:
            return
        replicaset = self._mirrors.replicasets.cache.get(f"{event.object['metadata']['namespace']}/{owner['name']}")
        upper = controller_of(replicaset) if replicaset is not None else None
        if upper is not None:
            self._queue.add(f"{event.object['metadata']['namespace']}/{upper['name']}")

    async def _reconcile(self, key: str) -> float | None:
        deployment = self._mirrors.deployments.cache.get(key)
        if deployment is None:
            return None
        cache = self._mirrors.replicasets.cache
        orphans = cache.by_index(ORPHANS, deployment["metadata"]["namespace"])
        owned = await self._claims.claim(deployment, cache.by_index(OWNER, deployment["metadata"]["uid"]), orphans)
        new, old = rollout.split_replicasets(deployment, owned)
        if not is_being_deleted(deployment):
            new = await self._roll_out(deployment, new, old)
        everything = [*([new] if new is not None else ()), *old]
        return await self._write_status(deployment, new, everything)

    async def _roll_out(self, deployment: Json, new: Json | None, old: Sequence[Json]) -> Json | None:
        if deployment["spec"].get("paused"):
            if new is not None:
                await self._scale(deployment, new, rollout.replicas(deployment))
            return new
        recreate = (deployment["spec"].get("strategy") or {}).get("type") == "Recreate"
        if recreate and await self._scale_to_zero(deployment, old):
            return new
        if new is None:
            new = await self._create(deployment, old)
            if new is None:
                return None
        else:
            new = await self._refresh(deployment, new, old)
        size = rollout.new_replicaset_size(deployment, [new, *old], rollout.replicas(new))
        new = await self._scale(deployment, new, size)
        if not recreate:
            by_name = {each["metadata"]["name"]: each for each in old}
            for scaling in rollout.scale_down_old(deployment, new, old):
                await self._scale(deployment, by_name[scaling.replicaset], scaling.replicas)
        await self._forget(deployment, new, old)
        return new

    async def _scale_to_zero(self, deployment: Json, old: Sequence[Json]) -> bool:
        """Scales the old ReplicaSets to 0; True while any of their pods exists."""
        for each in old:
            await self._scale(deployment, each, 0)
        pods = (pod for each in old for pod in self._mirrors.pods.cache.by_index(OWNER, each["metadata"]["uid"]))
        return any(is_active(pod) or is_being_deleted(pod) for pod in pods)

    # ReplicaSets

    async def _create(self, deployment: Json, old: Sequence[Json]) -> Json | None:
        """Creates the ReplicaSet of the present template; None after a name collision, which the status counts."""
        spec, metadata = deployment["spec"], deployment["metadata"]
        collisions = int((deployment.get("status") or {}).get("collisionCount") or 0)
        digest = rollout.template_hash(spec["template"], collisions)
        size = rollout.new_replicaset_size(deployment, old, 0)
        number = max(map(rollout.revision, old), default=0) + 1
        template = spec["template"]
        labels = {**((template.get("metadata") or {}).get("labels") or {}), rollout.HASH_LABEL: digest}
        selector = dict(spec["selector"])
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), rollout.HASH_LABEL: digest}
        body = {
            "metadata": {
                "name": f"{metadata['name']}-{digest}",
                "namespace": metadata["namespace"],
                "labels": labels,
                "annotations": rollout.annotations(deployment, number),
                "ownerReferences": [owner_reference(DEPLOYMENTS, deployment)],
            },
            "spec": {
                "replicas": size,
                "minReadySeconds": spec.get("minReadySeconds") or 0,
                "selector": selector,
                "template": {**template, "metadata": {**(template.get("metadata") or {}), "labels": labels}},
            },
        }
        try:
            created = await self._client.create(REPLICASETS.as_dicts(), body, metadata["namespace"])
        except AlreadyExists:
            return await self._find_existing(deployment, body["metadata"]["name"], collisions)
        await self._set_revision(deployment, number)
        if size:
            self._record_scaling(deployment, created, 0, size)
        return created

    async def _find_existing(self, deployment: Json, name: str, collisions: int) -> Json | None:
        found = await self._client.get(REPLICASETS.as_dicts(), name, deployment["metadata"]["namespace"])
        if controlled_by(found, deployment["metadata"]["uid"]) and rollout.same_template(
            deployment["spec"]["template"], found
        ):
            return found
        await self._mirrors.write_status(DEPLOYMENTS, deployment, {"collisionCount": collisions + 1})
        return None

    async def _refresh(self, deployment: Json, new: Json, old: Sequence[Json]) -> Json:
        """Gives the newest ReplicaSet the highest revision and the Deployment's annotations."""
        number = max(rollout.revision(new), max(map(rollout.revision, old), default=0) + 1)
        desired = rollout.annotations(deployment, number)
        current = new["metadata"].get("annotations") or {}
        if any(current.get(name) != value for name, value in desired.items()):
            new = await self._patch(new, {"metadata": {"annotations": desired}})
        await self._set_revision(deployment, number)
        return new

    async def _set_revision(self, deployment: Json, number: int) -> None:
        if rollout.revision(deployment) != number:
            metadata = deployment["metadata"]
            patch = {"metadata": {"annotations": {rollout.REVISION: str(number)}}}
            await self._client.merge_patch(
                DEPLOYMENTS.as_dicts(), metadata["name"], patch, metadata["namespace"], uid=metadata["uid"]
            )

    async def _scale(self, deployment: Json, replicaset: Json, size: int) -> Json:
        before = rollout.replicas(replicaset)
        if before == size:
            return replicaset
        patched = await self._patch(replicaset, {"spec": {"replicas": size}})
        self._record_scaling(deployment, replicaset, before, size)
        return patched

    async def _patch(self, replicaset: Json, patch: Mapping[str, Any]) -> Json:
        metadata = replicaset["metadata"]
        return await self._client.merge_patch(
            REPLICASETS.as_dicts(), metadata["name"], patch, metadata["namespace"], uid=metadata["uid"]
        )

    async def _forget(self, deployment: Json, new: Json, old: Sequence[Json]) -> None:
        if not rollout.is_complete(deployment, new, [new, *old]):
            return
        for each in rollout.old_to_forget(deployment, old):
            metadata = each["metadata"]
            try:
                await self._client.delete(REPLICASETS, metadata["name"], metadata["namespace"], uid=metadata["uid"])
            except NotFound:
                continue

    def _record_scaling(self, deployment: Json, replicaset: Json, before: int, size: int) -> None:
        word = "up" if size > before else "down"
        name = replicaset["metadata"]["name"]
        note = f"Scaled {word} replica set {name} from {before} to {size}"
        self._mirrors.record_event(DEPLOYMENTS, deployment, "ScalingReplicaSet", note)

    # Status

    async def _write_status(self, deployment: Json, new: Json | None, everything: Sequence[Json]) -> float | None:
        now = self._mirrors.clock.now()
        counts = rollout.count_totals(everything, new)
        counts["unavailableReplicas"] = max(0, rollout.replicas(deployment) - counts["availableReplicas"])
        old = deployment.get("status") or {}
        status = {name: value for name, value in counts.items() if value or old.get(name)}
        progressing, again = _progressing_condition(deployment, new, everything, counts, now)
        conditions = [_available(deployment, counts, now), *([progressing] if progressing else ())]
        kinds = {each["type"] for each in conditions}
        foreign = [each for each in old.get("conditions") or () if each["type"] not in kinds]
        status["conditions"] = conditions + foreign
        status["observedGeneration"] = deployment["metadata"].get("generation", 0)
        if key_of(deployment) in self._mirrors.deployments.cache:
            await self._mirrors.write_status(DEPLOYMENTS, deployment, status)
        return again


def _available(deployment: Json, counts: Mapping[str, int], now: float) -> dict[str, Any]:
    minimum = rollout.replicas(deployment) - rollout.bounds(deployment).unavailable
    if counts["availableReplicas"] >= minimum:
        text = "Deployment has minimum availability."
        return _condition(deployment, "Available", ("True", "MinimumReplicasAvailable"), text, now)
    text = "Deployment does not have minimum availability."
    return _condition(deployment, "Available", ("False", "MinimumReplicasUnavailable"), text, now)


def _progressing_condition(
    deployment: Json, new: Json | None, everything: Sequence[Json], counts: Mapping[str, int], now: float
) -> tuple[dict[str, Any] | None, float | None]:
    """Returns the condition, and the seconds until the deadline must be checked again."""
    deadline = deployment["spec"].get("progressDeadlineSeconds")
    deadline = DEADLINE if deadline is None else int(deadline)
    before = condition(deployment, "Progressing")
    if new is None:
        return (dict(before) if before is not None else None), None
    name = new["metadata"]["name"]
    if rollout.is_complete(deployment, new, everything):
        text = f'ReplicaSet "{name}" has successfully progressed.'
        return _condition(deployment, "Progressing", ("True", "NewReplicaSetAvailable"), text, now), None
    if before is None:
        text = f'Created new replica set "{name}"'
        return _condition(deployment, "Progressing", ("True", "NewReplicaSetCreated"), text, now), float(deadline)
    if before["reason"] == "NewReplicaSetAvailable" and not _is_rolling(deployment, counts):
        return dict(before), None
    if _has_advanced(deployment, counts) or before["reason"] == "NewReplicaSetAvailable":
        text = f'ReplicaSet "{name}" is progressing.'
        moved = _condition(deployment, "Progressing", ("True", "ReplicaSetUpdated"), text, now)
        return moved | {"lastUpdateTime": rfc3339(now)}, float(deadline)
    remaining = parse_rfc3339(before["lastUpdateTime"]) + deadline - now
    if remaining > 0:
        return dict(before), remaining
    text = f'ReplicaSet "{name}" has timed out progressing.'
    return _condition(deployment, "Progressing", ("False", "ProgressDeadlineExceeded"), text, now), None


def _is_rolling(deployment: Json, counts: Mapping[str, int]) -> bool:
    """True while a new template rolls out; a pod lost after that is no rollout."""
    return counts["updatedReplicas"] != rollout.replicas(deployment) or counts["replicas"] != counts["updatedReplicas"]


def _has_advanced(deployment: Json, counts: Mapping[str, int]) -> bool:
    old = deployment.get("status") or {}
    before_old = old.get("replicas", 0) - old.get("updatedReplicas", 0)
    return bool(
        counts["updatedReplicas"] > old.get("updatedReplicas", 0)
        or counts["replicas"] - counts["updatedReplicas"] < before_old
        or counts["readyReplicas"] > old.get("readyReplicas", 0)
        or counts["availableReplicas"] > old.get("availableReplicas", 0)
    )


def _condition(deployment: Json, kind: str, verdict: tuple[str, str], message: str, now: float) -> dict[str, Any]:
    """Makes a condition whose times change only if it changes; ``verdict`` is status and reason."""
    status, reason = verdict
    before = condition(deployment, kind)
    same = before is not None and before["status"] == status
    unchanged = before is not None and same and before.get("reason") == reason and before.get("message") == message
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastUpdateTime": before["lastUpdateTime"] if before is not None and unchanged else rfc3339(now),
        "lastTransitionTime": before["lastTransitionTime"] if before is not None and same else rfc3339(now),
    }
