"""HorizontalPodAutoscaler: reads its metrics every 15 seconds and sets the scale of its target.

Source: ``pkg/controller/podautoscaler/horizontal.go``. Of several metrics the largest proposal counts; one that cannot
be read stops a shrink, and all of them stop everything. There is no ``metrics.k8s.io`` in a lab, so metrics of type
Resource and ContainerResource cannot be read, as in a cluster without metrics-server.

A :class:`MetricReader` reads values of metrics from aggregated APIs, in thousandths.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tessera.clock import rfc3339
from tessera.kube.client import Client
from tessera.kube.errors import ApiError
from tessera.kube.informer import EventKind, WatchEvent
from tessera.kube.quantity import parse_quantity
from tessera.kube.resources.meta import key_of, split_key
from tessera.kube.resources.selectors import parse_selector
from tessera_lab.apiserver.handlers.subresource_handler import selector_text
from tessera_lab.workloads.autoscaling.replica_calculator import (
    TOLERANCE,
    Followed,
    Limits,
    MetricError,
    ScaleHistory,
    Target,
    Tolerances,
    by_average,
    by_pods,
    by_value,
)
from tessera_lab.workloads.base.mirrors import AUTOSCALERS, ObjectMirrors
from tessera_lab.workloads.base.ownership import Json, labels_of
from tessera_lab.workloads.base.pods import condition
from tessera_lab.workloads.base.work_queue import WorkQueue

_EXTERNAL, _CUSTOM = "/apis/external.metrics.k8s.io/v1beta1", "/apis/custom.metrics.k8s.io/v1beta2"


def thousandths(text: Any) -> int:
    """A quantity in thousandths, rounded up (``MilliValue``)."""
    return -int(-parse_quantity(str(text)) * 1000 // 1)


def milli_text(value: int) -> str:
    """Thousandths as a quantity: ``1500m``, or ``2`` for whole units."""
    return f"{value}m" if value % 1000 else str(value // 1000)


class MetricReader:
    """Reads ``external.metrics.k8s.io`` and ``custom.metrics.k8s.io``.

    Args:
        client: calls the API server.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def external(self, namespace: str, metric: Json) -> list[int]:
        """The values of an external metric, one for each set of labels.

        Raises:
            MetricError: there is none, or nobody answers.
        """
        name, selector = metric["name"], selector_text(metric.get("selector"))
        items = await self._items(
            f"{_EXTERNAL}/namespaces/{namespace}/{name}", [("labelSelector", selector)], "external"
        )
        return [thousandths(each["value"]) for each in items]

    async def of_pods(self, namespace: str, metric: Json, pods: str) -> dict[str, int]:
        """The values of pods that a selector matches, by name.

        Raises:
            MetricError: as above.
        """
        query = [("labelSelector", pods), ("metricLabelSelector", selector_text(metric.get("selector")))]
        items = await self._items(f"{_CUSTOM}/namespaces/{namespace}/pods/*/{metric['name']}", query, "custom")
        return {each["describedObject"]["name"]: thousandths(each["value"]) for each in items}

    async def of_object(self, namespace: str, metric: Json, described: Json) -> int:
        """The value of an object.

        Raises:
            MetricError: as above.
        """
        group = described.get("apiVersion", "").rpartition("/")[0]
        plural = described["kind"].lower() + "s" + (f".{group}" if group else "")
        path = f"{_CUSTOM}/namespaces/{namespace}/{plural}/{described['name']}/{metric['name']}"
        items = await self._items(path, [("metricLabelSelector", selector_text(metric.get("selector")))], "custom")
        return thousandths(items[0]["value"])

    async def _items(self, path: str, query: Sequence[tuple[str, str]], api: str) -> Sequence[Json]:
        given = [each for each in query if each[1]]
        try:
            answer = await self._client.request("GET", path, query=given)
        except (ApiError, OSError) as error:
            raise MetricError(f"unable to fetch metrics from {api} metrics API: {error}") from None
        items: Sequence[Json] = msgspec.json.decode(answer.body).get("items") or ()
        if not items:
            raise MetricError(f"no metrics returned from {api} metrics API")
        return items


#: ``--horizontal-pod-autoscaler-sync-period``, seconds.
PERIOD = 15.0

_STABILIZED = {
    "ScaleUpStabilized": "recent recommendations were lower than current one, applying the lowest recent"
    " recommendation",
    "ScaleDownStabilized": "recent recommendations were higher than current one, applying the highest recent"
    " recommendation",
}
_LIMITS = {
    "": "the desired count is within the acceptable range",
    "TooManyReplicas": "the desired replica count is more than the maximum replica count",
    "TooFewReplicas": "the desired replica count is less than the minimum replica count",
    "ScaleUpLimit": "the desired replica count is increasing faster than the maximum scale rate",
    "ScaleDownLimit": "the desired replica count is decreasing faster than the maximum scale rate",
}


class _Proposal(NamedTuple):
    """The proposal of one metric, its name in reasons, and its value as ``status.currentMetrics`` has it."""

    replicas: int
    name: str
    status: dict[str, Any]


class _Verdict(NamedTuple):
    """What a round ends with: the replicas to set, why, and the conditions by type."""

    replicas: int
    reason: str
    conditions: dict[str, tuple[str, str, str]]
    metrics: list[dict[str, Any]]


class HorizontalPodAutoscalerController:
    """Scales."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._client = mirrors.client
        self._reader = MetricReader(mirrors.client)
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng_of(AUTOSCALERS), workers=5)
        self._histories: dict[str, ScaleHistory] = {}
        #: Paths of the plural of each kind that has a scale, by apiVersion and kind.
        self._plurals: dict[tuple[str, str], str] = {}
        mirrors.autoscalers.add_handler(self._changed)

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._queue.run()

    def _changed(self, event: WatchEvent[dict[str, Any]]) -> None:
        """Begins with a new object; a changed one is read at its next round (``NewDefaultHPARateLimiter``)."""
        key = key_of(event.object)
        if event.kind is EventKind.DELETED:
            self._histories.pop(key, None)
        elif key not in self._histories:
            self._histories[key] = ScaleHistory()
            self._queue.add(key)

    async def _reconcile(self, key: str) -> float | None:
        scaler = self._mirrors.autoscalers.cache.get(key)
        if scaler is None:
            return None
        try:
            path, scale = await self._read_scale(scaler)
        except (ApiError, OSError, MetricError) as error:
            text = f"the HPA controller was unable to get the target's current scale: {error}"
            self._mirrors.record_event(AUTOSCALERS, scaler, "FailedGetScale", str(error), warning=True)
            await self._write(scaler, None, {"AbleToScale": ("False", "FailedGetScale", text)}, [])
            return PERIOD
        target = self._target(scaler, scale)
        verdict = await self._decide(scaler, target, self._histories[key])
        if verdict.replicas != target.replicas:
            verdict = await self._rescale(scaler, path, target, verdict)
        await self._write(scaler, (target, verdict), verdict.conditions, verdict.metrics)
        return PERIOD

    # The target

    async def _read_scale(self, scaler: Json) -> tuple[str, dict[str, Any]]:
        reference, (namespace, _) = scaler["spec"]["scaleTargetRef"], split_key(key_of(scaler))
        version, kind = reference.get("apiVersion", "v1"), reference["kind"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._plurals:
            listed = msgspec.json.decode((await self._client.request("GET", base)).body)["resources"]
            found = [each["name"] for each in listed if each["kind"] == kind and "/" not in each["name"]]
            if not found or f"{found[0]}/scale" not in {each["name"] for each in listed}:
                raise MetricError(f'no matches for kind "{kind}" in group "{version.rpartition("/")[0]}"')
            self._plurals[version, kind] = found[0]
        path = f"{base}/namespaces/{namespace}/{self._plurals[version, kind]}/{reference['name']}/scale"
        return path, msgspec.json.decode((await self._client.request("GET", path)).body)

    def _target(self, scaler: Json, scale: Json) -> Target:
        status = scale.get("status") or {}
        selector = parse_selector(status.get("selector") or "")
        namespace = scaler["metadata"]["namespace"]
        pods = [
            pod
            for pod in self._mirrors.pods.cache.values()
            if pod["metadata"]["namespace"] == namespace and selector.matches(labels_of(pod))
        ]
        replicas, observed = int(scale["spec"].get("replicas") or 0), int(status.get("replicas") or 0)
        return Target(replicas, observed, pods, status.get("selector") or "")

    async def _rescale(self, scaler: Json, path: str, target: Target, verdict: _Verdict) -> _Verdict:
        size, conditions = verdict.replicas, dict(verdict.conditions)
        try:
            body = {"spec": {"replicas": size}}
            await self._client.request("PATCH", path, body=body, content_type="application/merge-patch+json")
        except (ApiError, OSError) as error:
            text = f"the HPA controller was unable to update the target scale: {error}"
            note = f"New size: {size}; reason: {verdict.reason}; error: {error}"
            self._mirrors.record_event(AUTOSCALERS, scaler, "FailedRescale", note, warning=True)
            conditions["AbleToScale"] = ("False", "FailedUpdateScale", text)
            return verdict._replace(replicas=target.replicas, conditions=conditions)
        self._histories[key_of(scaler)].note_scaled(target.replicas, size, self._mirrors.clock.now())
        note = f"New size: {size}; reason: {verdict.reason}"
        self._mirrors.record_event(AUTOSCALERS, scaler, "SuccessfulRescale", note)
        text = f"the HPA controller was able to update the target scale to {size}"
        conditions["AbleToScale"] = ("True", "SucceededRescale", text)
        return verdict._replace(conditions=conditions)

    # The decision

    async def _decide(self, scaler: Json, target: Target, history: ScaleHistory) -> _Verdict:
        spec, current = scaler["spec"], target.replicas
        limits = Limits(spec.get("minReplicas", 1), spec["maxReplicas"], spec.get("behavior"))
        able = ("True", "SucceededGetScale", "the HPA controller was able to get the target's current scale")
        if current == 0 and limits.least != 0:
            text = "scaling is disabled since the replica count of the target is zero"
            return _Verdict(0, "", {"AbleToScale": able, "ScalingActive": ("False", "ScalingDisabled", text)}, [])
        if current > limits.most:
            return _Verdict(limits.most, "Current number of replicas above Spec.MaxReplicas", {"AbleToScale": able}, [])
        if current < limits.least:
            text = "Current number of replicas below Spec.MinReplicas"
            return _Verdict(limits.least, text, {"AbleToScale": able}, [])
        best, active, found = await self._propose(scaler, target)
        if best is None:
            return _Verdict(current, "", {"AbleToScale": able, "ScalingActive": active}, found)
        followed = history.follow(current, best.replicas, limits, self._mirrors.clock.now())
        above = f"{best.name} above target"
        reason = above if followed.replicas > current else "All metrics below target"
        return _Verdict(followed.replicas, reason, _conditions(best, followed) | {"ScalingActive": active}, found)

    async def _propose(
        self, scaler: Json, target: Target
    ) -> tuple[_Proposal | None, tuple[str, str, str], list[dict[str, Any]]]:
        """The largest proposal, the condition ScalingActive, and the values; none if a shrink would be a guess."""
        proposals: list[_Proposal] = []
        failure: tuple[str, str, str] | None = None
        for spec in scaler["spec"].get("metrics") or ():
            try:
                proposals.append(await self._one(scaler, spec, target))
            except MetricError as error:
                text = f"the HPA was unable to compute the replica count: {error}"
                failure = failure or ("False", f"FailedGet{spec['type']}Metric", text)
                self._mirrors.record_event(AUTOSCALERS, scaler, failure[1], str(error), warning=True)
        found = [each.status for each in proposals]
        best = max(proposals, key=lambda each: each.replicas, default=None)
        if best is None or (failure and best.replicas < target.replicas):
            return None, failure or ("False", "InvalidMetricSourceType", "no metrics are named"), found
        text = f"the HPA was able to successfully calculate a replica count from {best.name}"
        return best, ("True", "ValidMetricFound", text), found

    async def _one(self, scaler: Json, spec: Json, target: Target) -> _Proposal:
        namespace, kind = scaler["metadata"]["namespace"], spec["type"]
        tolerances = _tolerances(scaler["spec"].get("behavior") or {})
        if kind not in {"External", "Pods", "Object"}:
            raise MetricError(
                "unable to fetch metrics from resource metrics API: the server could not find the requested resource"
                " (get pods.metrics.k8s.io)"
            )
        source = spec[kind.lower()]
        wanted = {key: thousandths(value) for key, value in source["target"].items() if key != "type"}
        name = source["metric"]["name"]
        if kind == "Pods":
            values = await self._reader.of_pods(namespace, source["metric"], target.selector)
            replicas = by_pods(values, wanted["averageValue"], target, tolerances)
            shown = {"averageValue": milli_text(sum(values.values()) // len(values))}
            return _Proposal(replicas, f"pods metric {name}", _status(spec, source, shown))
        if kind == "External":
            usage = sum(await self._reader.external(namespace, source["metric"]))
        else:
            usage = await self._reader.of_object(namespace, source["metric"], source["describedObject"])
        title = f"external metric {namespace}/{name}" if kind == "External" else f"object metric {name}"
        if "averageValue" in wanted:
            replicas = by_average(usage, wanted["averageValue"], target, tolerances)
            shown = {"averageValue": milli_text(-(-usage // max(1, target.observed)))}
        else:
            replicas = by_value(usage, wanted["value"], target, tolerances)
            shown = {"value": milli_text(usage)}
        return _Proposal(replicas, title, _status(spec, source, shown))

    # The status

    async def _write(
        self,
        scaler: Json,
        scaled: tuple[Target, _Verdict] | None,
        conditions: Mapping[str, tuple[str, str, str]],
        metrics: list[dict[str, Any]],
    ) -> None:
        now = rfc3339(self._mirrors.clock.now())
        old = {each["type"]: each for each in (scaler.get("status") or {}).get("conditions") or ()}
        shown = {**old, **{kind: _condition(scaler, kind, each, now) for kind, each in conditions.items()}}
        status: dict[str, Any] = {"conditions": list(shown.values()), "currentMetrics": metrics or None}
        status["observedGeneration"] = scaler["metadata"].get("generation", 0)
        if scaled is not None:
            target, verdict = scaled
            status |= {"currentReplicas": target.replicas, "desiredReplicas": verdict.replicas}
            if verdict.replicas != target.replicas:
                status["lastScaleTime"] = now
        await self._mirrors.write_status(AUTOSCALERS, scaler, status)


def _tolerances(behavior: Json) -> Tolerances:
    down, up = (
        thousandths(tolerance) / 1000 if (tolerance := (behavior.get(way) or {}).get("tolerance")) else TOLERANCE
        for way in ("scaleDown", "scaleUp")
    )
    return Tolerances(down, up)


def _status(spec: Json, source: Json, current: Mapping[str, str]) -> dict[str, Any]:
    kept = {key: source[key] for key in ("metric", "describedObject") if key in source}
    return {"type": spec["type"], spec["type"].lower(): {**kept, "current": dict(current)}}


def _conditions(best: _Proposal, followed: Followed) -> dict[str, tuple[str, str, str]]:
    able = ("True", "ReadyForNewScale", "recommended size matches current size")
    if followed.stabilized != best.replicas:
        reason = "ScaleUpStabilized" if followed.stabilized < best.replicas else "ScaleDownStabilized"
        able = ("True", reason, _STABILIZED[reason])
    limited = ("True" if followed.limit else "False", followed.limit or "DesiredWithinRange", _LIMITS[followed.limit])
    return {"AbleToScale": able, "ScalingLimited": limited}


def _condition(scaler: Json, kind: str, verdict: tuple[str, str, str], now: str) -> dict[str, Any]:
    status, reason, message = verdict
    before = condition(scaler, kind)
    kept = before is not None and before["status"] == status
    since = before["lastTransitionTime"] if before is not None and kept else now
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}
