"""The status of PodDisruptionBudgets, by which the API server allows or refuses an eviction.

Rules (``pkg/controller/disruption/disruption.go``): with ``maxUnavailable``, or a percentage, the pods that should be
there are the replicas of the controllers of the pods that the budget selects; a controller without replicas allows no
disruption. A pod that was evicted counts as gone from that moment on, for two minutes at most, since its deletion may
not have been seen yet.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from tessera.clock import parse_rfc3339, rfc3339
from tessera.kube.errors import Conflict, NotFound
from tessera.kube.informer import Informer, WatchEvent
from tessera.kube.resources import POD_DISRUPTION_BUDGETS, LabelSelector
from tessera.kube.resources.meta import key_of
from tessera.kube.resources.selectors import make_selector
from tessera_lab.workloads.base.mirrors import ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, controller_of, is_being_deleted, labels_of
from tessera_lab.workloads.base.pods import condition, is_ready
from tessera_lab.workloads.base.work_queue import WorkQueue

#: Seconds for which an evicted pod counts as gone although it is still there (``DeletionTimeout``).
DELETION_TIMEOUT = 120.0


class DisruptionBudgetController:
    """Keeps the status of budgets."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        #: By kind, the controllers of pods that have replicas.
        self._scaled: Mapping[str, Informer[dict[str, Any]]] = {
            "Deployment": mirrors.deployments,
            "ReplicaSet": mirrors.replicasets,
            "StatefulSet": mirrors.statefulsets,
        }
        mirrors.budgets.add_handler(lambda event: self._queue.add(key_of(event.object)))
        for informer in (mirrors.pods, *self._scaled.values()):
            informer.add_handler(self._on_neighbour)

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._queue.run()

    def _on_neighbour(self, event: WatchEvent[dict[str, Any]]) -> None:
        """Looks again at the budgets of the namespace: clusters of a lab have few."""
        for budget in self._mirrors.budgets.cache.values():
            if budget["metadata"]["namespace"] == event.object["metadata"].get("namespace"):
                self._queue.add(key_of(budget))

    async def _reconcile(self, key: str) -> float | None:
        budget = self._mirrors.budgets.cache.get(key)
        if budget is None or is_being_deleted(budget):
            return None
        now = self._mirrors.clock.now()
        pods = covered(budget, self._mirrors.pods.cache.values())
        disrupted = _disrupted(budget, pods, now)
        await self._write(budget, budget_status(budget, pods, self._expected(pods), disrupted, rfc3339(now)))
        ends = [parse_rfc3339(since) + DELETION_TIMEOUT - now for since in disrupted.values()]
        return min(ends, default=None)

    def _expected(self, pods: Iterable[Json]) -> int | None:
        """The replicas of the pods' controllers together; None if one has none."""
        found: dict[str, int] = {}
        for pod in pods:
            owner = self._scaled_owner(pod)
            if owner is None and controller_of(pod) is not None:
                return None
            if owner is not None:
                found[owner["metadata"]["uid"]] = owner["spec"].get("replicas", 1)
        return sum(found.values())

    def _scaled_owner(self, item: Json) -> Json | None:
        """The object with replicas that controls an object, at the end of the chain: the Deployment of a ReplicaSet."""
        reference = controller_of(item)
        informer = self._scaled.get(str(reference["kind"])) if reference is not None else None
        if reference is None or informer is None:
            return None
        owner = informer.cache.get(f"{item['metadata']['namespace']}/{reference['name']}")
        return None if owner is None else self._scaled_owner(owner) or owner

    async def _write(self, budget: Json, status: Mapping[str, Any]) -> None:
        """Writes the fields that differ. The version must be the one that was read: an eviction counts on it, too."""
        old = budget.get("status") or {}
        changed = {name: value for name, value in status.items() if old.get(name) != value}
        gone = {name: None for name in old.get("disruptedPods") or {} if name not in status["disruptedPods"]}
        if "disruptedPods" in changed:
            changed["disruptedPods"] = {**gone, **status["disruptedPods"]}
        if not changed:
            return
        meta = budget["metadata"]
        with suppress(NotFound, Conflict):  # its event queues the budget again
            await self._mirrors.client.merge_patch(
                POD_DISRUPTION_BUDGETS.as_dicts(),
                meta["name"],
                {"status": changed},
                meta["namespace"],
                subresource="status",
                uid=meta["uid"],
                resource_version=meta["resourceVersion"],
            )


def covered(budget: Json, pods: Iterable[Json]) -> list[Json]:
    """The pods that a budget covers: an empty selector covers all of its namespace, an absent one none."""
    selector = make_selector(msgspec.convert((budget.get("spec") or {}).get("selector"), LabelSelector | None))
    if selector is None:
        return []
    namespace = budget["metadata"]["namespace"]
    return [pod for pod in pods if pod["metadata"]["namespace"] == namespace and selector.matches(labels_of(pod))]


def budget_status(
    budget: Json, pods: Sequence[Json], expected: int | None, disrupted: Mapping[str, str], now: str
) -> dict[str, Any]:
    """The status of a budget.

    Args:
        budget: the budget.
        pods: the pods that it covers.
        expected: replicas of their controllers; None if one has none.
        disrupted: by name, when pods were evicted whose deletion was not seen.
        now: the time as text.
    """
    spec = budget.get("spec") or {}
    least = spec.get("minAvailable")
    if isinstance(least, int):
        expected = len(pods)
    most = spec.get("maxUnavailable", 0 if least is not None else 1)
    total = expected or 0
    desired = _amount(least, total) if least is not None else max(0, total - _amount(most, total))
    healthy = sum(is_ready(pod) and pod["metadata"]["name"] not in disrupted for pod in pods)
    allowed = max(0, healthy - desired) if expected else 0
    return {
        "observedGeneration": budget["metadata"].get("generation", 0),
        "expectedPods": total,
        "desiredHealthy": desired,
        "currentHealthy": healthy,
        "disruptionsAllowed": allowed,
        "disruptedPods": dict(disrupted),
        "conditions": [_condition(budget, allowed=allowed > 0, known=expected is not None, now=now)],
    }


def _condition(budget: Json, *, allowed: bool, known: bool, now: str) -> dict[str, Any]:
    status = "True" if allowed else "False"
    before = condition(budget, "DisruptionAllowed")
    kept = before is not None and before["status"] == status
    return {
        "type": "DisruptionAllowed",
        "status": status,
        "reason": ("SufficientPods" if allowed else "InsufficientPods") if known else "SyncFailed",
        "message": "" if known else "a controller of these pods has no replicas",
        "observedGeneration": budget["metadata"].get("generation", 0),
        "lastTransitionTime": before["lastTransitionTime"] if before is not None and kept else now,
    }


def _disrupted(budget: Json, pods: Iterable[Json], now: float) -> dict[str, str]:
    """Evicted pods that are still there without a deletion, by name, with the time of the eviction."""
    there = {pod["metadata"]["name"] for pod in pods if not is_being_deleted(pod)}
    noted = (budget.get("status") or {}).get("disruptedPods") or {}
    return {
        name: since for name, since in noted.items() if name in there and now - parse_rfc3339(since) < DELETION_TIMEOUT
    }


def _amount(value: int | str, total: int) -> int:
    """A number, or a percentage of ``total`` rounded up, as both fields of a budget have it."""
    return value if isinstance(value, int) else -(-int(value.removesuffix("%")) * total // 100)
