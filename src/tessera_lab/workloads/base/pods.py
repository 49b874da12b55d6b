"""Functions about pods for workload controllers. Only :class:`PodMaker` does I/O."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.clock import parse_rfc3339
from tessera.kube.errors import ApiError, Forbidden, NotFound
from tessera.kube.resources import PODS
from tessera.kube.resources.meta import Resource
from tessera_lab.workloads.base.mirrors import ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, is_being_deleted, owner_reference
from tessera_lab.workloads.base.work_queue import Expectations

#: Pods created first, then twice as many each time: a quota that refuses one refuses all (``slowStartBatch``).
_FIRST_BATCH = 1


def is_active(pod: Json) -> bool:
    """Neither finished nor being deleted."""
    return phase(pod) not in {"Succeeded", "Failed"} and not is_being_deleted(pod)


def phase(pod: Json) -> str:
    """``status.phase``."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def condition(item: Json, kind: str) -> Json | None:
    """One condition of an object's status."""
    for each in (item.get("status") or {}).get("conditions") or ():
        if each.get("type") == kind:
            found: Json = each
            return found
    return None


def is_ready(pod: Json) -> bool:
    """Condition Ready is True."""
    ready = condition(pod, "Ready")
    return ready is not None and ready["status"] == "True" and not is_being_deleted(pod)


def available_in(pod: Json, min_ready: float, now: float) -> float | None:
    """Seconds until the pod counts as available; 0 when it does, None while it is not ready."""
    ready = condition(pod, "Ready")
    if ready is None or not is_ready(pod):
        return None
    return max(0.0, parse_rfc3339(ready["lastTransitionTime"]) + min_ready - now) if min_ready else 0.0


def created_at(item: Json) -> float:
    """``metadata.creationTimestamp`` in seconds since 1970."""
    return parse_rfc3339(item["metadata"]["creationTimestamp"])


def deletion_rank(pod: Json) -> tuple[Any, ...]:
    """Pods with the smallest rank are deleted first (``controller.ActivePodsWithRanks``)."""
    order = {"Pending": 0, "Unknown": 1, "Running": 2}
    cost = (pod["metadata"].get("annotations") or {}).get("controller.kubernetes.io/pod-deletion-cost", "0")
    ready = condition(pod, "Ready")
    since = parse_rfc3339(ready["lastTransitionTime"]) if ready is not None and is_ready(pod) else 0.0
    restarts = sum(each.get("restartCount", 0) for each in (pod.get("status") or {}).get("containerStatuses") or ())
    return (
        1 if pod["spec"].get("nodeName") else 0,
        order.get(phase(pod), 1),
        1 if is_ready(pod) else 0,
        _cost(cost),
        -since,
        -restarts,
        -created_at(pod),
        pod["metadata"]["name"],
    )


def _cost(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0  # as upstream


def from_template(template: Json, owner: Json, resource: Resource[Any], extra: Mapping[str, str] | None = None) -> Any:
    """A pod of a workload, without name: labels and annotations of the template, controlled by ``owner``."""
    metadata = template.get("metadata") or {}
    return {
        "metadata": {
            "namespace": owner["metadata"]["namespace"],
            "labels": {**(metadata.get("labels") or {}), **(extra or {})},
            "annotations": dict(metadata.get("annotations") or {}),
            "finalizers": list(metadata.get("finalizers") or ()),
            "ownerReferences": [owner_reference(resource, owner)],
        },
        "spec": dict(template["spec"]),
    }


class PodMaker:
    """Creates and deletes pods for one kind of workload, and records events about it.

    Args:
        mirrors: the client and the events.
        resource: the workload's resource.
        expectations: updated with failed requests, so that the controller does not wait for them.
    """

    def __init__(self, mirrors: ObjectMirrors, resource: Resource[Any], expectations: Expectations) -> None:
        self._mirrors = mirrors
        self._resource = resource
        self._expectations = expectations

    async def create(self, key: str, owner: Json, make: Callable[[int], Mapping[str, Any]], number: int) -> None:
        """Creates pods in growing batches.

        Raises:
            ApiError: the first refusal; pods that were not created are no longer expected.
        """
        done, batch = 0, _FIRST_BATCH
        while done < number:
            size = min(batch, number - done)
            answers = await asyncio.gather(
                *(self._create_one(key, owner, make(index)) for index in range(done, done + size))
            )
            done += size
            rejections = [each for each in answers if each is not None]
            if rejections:
                self._expectations.note_created(key, number - done)
                raise rejections[0]
            batch *= 2

    async def _create_one(self, key: str, owner: Json, pod: Mapping[str, Any]) -> ApiError | None:
        try:
            created = await self._mirrors.client.create(PODS.as_dicts(), pod, owner["metadata"]["namespace"])
        except ApiError as error:
            self._expectations.note_created(key)
            terminating = isinstance(error, Forbidden) and any(
                each.reason == "NamespaceTerminating" for each in error.causes
            )
            if not terminating:
                self._record_event(owner, "FailedCreate", f"Error creating: {error.message}", warning=True)
            return error
        except (ConnectionError, TimeoutError):
            self._expectations.note_created(key)
            raise
        self._record_event(owner, "SuccessfulCreate", f"Created pod: {created['metadata']['name']}")
        return None

    async def delete(self, key: str, owner: Json, pods: Sequence[Json]) -> None:
        """Deletes pods concurrently."""
        await asyncio.gather(*(self._delete_one(key, owner, pod) for pod in pods))

    async def _delete_one(self, key: str, owner: Json, pod: Json) -> None:
        metadata = pod["metadata"]
        try:
            await self._mirrors.client.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"])
        except NotFound:
            self._expectations.note_deleted(key, metadata["uid"])
        except ApiError as error:
            self._expectations.note_deleted(key, metadata["uid"])
            self._record_event(owner, "FailedDelete", f"Error deleting: {error.message}", warning=True)
            raise
        else:
            self._record_event(owner, "SuccessfulDelete", f"Deleted pod: {metadata['name']}")

    def _record_event(self, owner: Json, reason: str, note: str, *, warning: bool = False) -> None:
        self._mirrors.record_event(self._resource, owner, reason, note, warning=warning)
