"""Writes the status of Workloads, and events about them."""

import random
from typing import Any

from tessera.clock import Clock, rfc3339
from tessera.kube.client.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.resources import ObjectReference
from tessera.kube.resources.meta import Resource
from tessera_lab.kueue.objects import condition

Json = dict[str, Any]


class WorkloadStatus:
    """The status of Workloads. A Workload in memory gets the status that the server has stored.

    Args:
        client: an administrator.
        clock: the time.
        workloads: the kind at the version that is used.
    """

    def __init__(self, client: Client, clock: Clock, workloads: Resource[Json]) -> None:
        self._client = client
        self._clock = clock
        self._workloads = workloads
        self._events = EventRecorder(client, component="kueue", instance="0", clock=clock, rng=random.Random(0))

    async def send_events(self) -> None:
        """Sends recorded events until cancelled."""
        await self._events.run()

    async def set_condition(
        self, item: Json, type_: str, status: bool, reason: str, text: str, *, drop: bool = False
    ) -> None:
        """Writes a condition unless it is there already; ``drop`` gives the quota back too."""
        conditions = self.with_condition(item, type_, status, reason, text)
        if conditions != item.get("status", {}).get("conditions"):
            await self.write(item, {"conditions": conditions, **({"admission": None} if drop else {})})

    def with_condition(self, item: Json, type_: str, status: bool, reason: str, text: str) -> list[Json]:
        """The conditions with this one; its time changes with its status alone."""
        before = condition(item, type_)
        made = {
            "type": type_,
            "status": str(status),
            "reason": reason,
            "message": text,
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        if before is not None and before["status"] == made["status"]:
            made["lastTransitionTime"] = before["lastTransitionTime"]
        rest = [each for each in item.get("status", {}).get("conditions") or () if each["type"] != type_]
        return sorted([*rest, made], key=lambda each: str(each["type"]))

    async def write(self, item: Json, patch: Json) -> None:
        """Merges a patch into the status."""
        meta = item["metadata"]
        stored = await self._client.merge_patch(
            self._workloads, meta["name"], {"status": patch}, meta["namespace"], subresource="status"
        )
        item["status"] = stored.get("status", {})

    def record(self, kind: str, item: Json, reason: str, text: str) -> None:
        """Records an event about a Workload, a Job or a pod."""
        meta = item["metadata"]
        versions = {"Pod": "v1", "Job": "batch/v1"}
        about = ObjectReference(
            api_version=versions.get(kind, self._workloads.api_version),
            kind=kind,
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
        )
        self._events.record(about, reason, text, type="Warning")
