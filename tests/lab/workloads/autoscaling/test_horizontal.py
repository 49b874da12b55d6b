"""A HorizontalPodAutoscaler scales its target by metrics of an aggregated API."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.errors import Invalid
from tessera.kube.requests import Request, Response
from tessera.kube.resources import API_SERVICES, DEPLOYMENTS
from tessera_lab.apiserver.handlers.aggregation import Target
from tessera_lab.workloads.base.mirrors import AUTOSCALERS

Make = Callable[..., dict[str, Any]]


class Metrics:
    """An external metrics API with one series; None answers with an empty list."""

    def __init__(self, value: str | None) -> None:
        self.value = value
        self.paths: list[str] = []

    async def __call__(self, target: Target, request: Request) -> Response:
        self.paths.append(f"{target.name}{request.path}")
        items = [] if self.value is None else [{"metricName": "m", "metricLabels": {}, "value": self.value}]
        return Response(status=200, headers={}, body=msgspec.json.encode({"items": items}))


def scaler(**spec: Any) -> dict[str, Any]:
    metric = {"name": "waiting", "selector": {"matchLabels": {"service": "d"}}}
    external = {"metric": metric, "target": {"type": "AverageValue", "averageValue": "10"}}
    usual = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
        "maxReplicas": 10,
        "metrics": [{"type": "External", "external": external}],
    }
    return {"metadata": {"name": "h"}, "spec": usual | spec}


async def begin(lab: ControlPlaneLab, served: Metrics, workload: Make, **spec: Any) -> None:
    lab.server.aggregator.call = served
    service = {"name": "metrics", "namespace": "default", "port": 443}
    group = {"group": "external.metrics.k8s.io", "version": "v1beta1"}
    body = {
        "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
        "spec": {**group, "groupPriorityMinimum": 100, "versionPriority": 100, "service": service},
    }
    await lab.api.create(API_SERVICES, body)
    lab.start_controllers()
    await lab.start_nodes("n1")
    await lab.api.create(DEPLOYMENTS.as_dicts(), workload("d", replicas=2), "default")
    await lab.clock.sleep(10)
    await lab.api.create(AUTOSCALERS, scaler(**spec), "default")
    await lab.clock.sleep(16)


async def replicas(lab: ControlPlaneLab) -> int:
    return int((await lab.get(DEPLOYMENTS, "d"))["spec"]["replicas"])


async def conditions(lab: ControlPlaneLab) -> dict[str, tuple[str, str]]:
    status = (await lab.get(AUTOSCALERS, "h"))["status"]
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


async def test_a_service_grows_with_its_queue_and_shrinks_after_the_window(
    lab: ControlPlaneLab, workload: Make
) -> None:
    metrics = Metrics("35500m")
    await begin(lab, metrics, workload)
    assert metrics.paths[-1].endswith("/namespaces/default/waiting")
    assert await replicas(lab) == 4
    await lab.clock.sleep(16)
    status = (await lab.get(AUTOSCALERS, "h"))["status"]
    assert (status["currentReplicas"], status["desiredReplicas"]) == (4, 4)
    assert status["currentMetrics"][0]["external"]["current"] == {"averageValue": "8875m"}
    assert ("SuccessfulRescale", "New size: 4; reason: external metric default/waiting above target") in (
        await lab.notes("h")
    )
    metrics.value = "5"
    await lab.clock.sleep(240)
    assert await replicas(lab) == 4
    await lab.clock.sleep(90)
    assert await replicas(lab) == 1


CPU = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 5}}


@pytest.mark.parametrize("spec", [{}, {"metrics": [{"type": "Resource", "resource": CPU}]}])
async def test_nothing_is_scaled_without_a_value(lab: ControlPlaneLab, workload: Make, spec: dict[str, Any]) -> None:
    await begin(lab, Metrics(None), workload, **spec)
    assert await replicas(lab) == 2
    kind = "External" if not spec else "Resource"
    assert (await conditions(lab))["ScalingActive"] == ("False", f"FailedGet{kind}Metric")


async def test_a_target_of_zero_replicas_is_paused(lab: ControlPlaneLab, workload: Make) -> None:
    await begin(lab, Metrics("100"), workload)
    await lab.api.merge_patch(DEPLOYMENTS.as_dicts(), "d", {"spec": {"replicas": 0}}, "default")
    await lab.clock.sleep(30)
    assert await replicas(lab) == 0
    assert (await conditions(lab))["ScalingActive"] == ("False", "ScalingDisabled")


async def test_a_target_without_a_scale_is_named(lab: ControlPlaneLab, workload: Make) -> None:
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "d"}
    await begin(lab, Metrics("100"), workload, scaleTargetRef=reference)
    assert (await conditions(lab))["AbleToScale"] == ("False", "FailedGetScale")


async def test_the_first_version_shows_and_takes_the_target_for_cpu(lab: ControlPlaneLab) -> None:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
    spec = {"scaleTargetRef": reference, "maxReplicas": 3, "targetCPUUtilizationPercentage": 60}
    body = {"metadata": {"name": "h"}, "spec": spec}
    first = AUTOSCALERS.__class__("autoscaling", "v1", AUTOSCALERS.plural, AUTOSCALERS.kind, True, dict[str, Any])
    await lab.api.create(first, body, "default")
    stored = (await lab.get(AUTOSCALERS, "h"))["spec"]
    assert stored["metrics"][0]["resource"]["target"]["averageUtilization"] == 60
    shown = (await lab.get(first, "h"))["spec"]
    assert (shown["targetCPUUtilizationPercentage"], shown["minReplicas"]) == (60, 1)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"minReplicas": 0}, "spec.minReplicas"),
        ({"minReplicas": 20}, "spec.maxReplicas"),
        ({"metrics": [{"type": "Pods"}]}, "spec.metrics[0].pods"),
        ({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 4000}}}, "stabilizationWindowSeconds"),
        ({"behavior": {"scaleUp": {"policies": [{"type": "Pods", "periodSeconds": 9}]}}}, "policies[0].value"),
    ],
)
async def test_what_kubernetes_refuses_is_refused(lab: ControlPlaneLab, spec: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid, match=field.replace("[", r"\[").replace("]", r"\]")):
        await lab.api.create(AUTOSCALERS, scaler(**spec), "default")
