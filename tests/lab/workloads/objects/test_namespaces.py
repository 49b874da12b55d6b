"""Objects that a namespace creates, objects that its deletion removes, and endpoints of Services."""

from collections.abc import Callable
from typing import Any

from tests.support.control_plane_lab import ControlPlaneLab

from tessera.kube.resources import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    EVENTS,
    NAMESPACES,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from tessera_lab.workloads.objects.endpoints import ENDPOINT_SLICES, ENDPOINTS

Make = Callable[..., dict[str, Any]]

WIDGETS: dict[str, Any] = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}


async def team(lab: ControlPlaneLab) -> None:
    lab.start_controllers()
    await lab.start_nodes("n1")
    await lab.api.create(NAMESPACES.as_dicts(), {"metadata": {"name": "team"}})
    await lab.clock.sleep(0.5)


async def test_a_namespace_is_furnished_and_again_when_something_is_lost(lab: ControlPlaneLab) -> None:
    await team(lab)
    assert await lab.exists(SERVICE_ACCOUNTS, "default", "team")
    assert (await lab.get(CONFIGMAPS, "kube-root-ca.crt", "team"))["data"] == {"ca.crt": "PEM"}
    await lab.api.delete(SERVICE_ACCOUNTS, "default", "team")
    await lab.clock.sleep(0.5)
    assert await lab.exists(SERVICE_ACCOUNTS, "default", "team")


async def test_a_deleted_namespace_is_emptied_and_goes(lab: ControlPlaneLab, workload: Make) -> None:
    await team(lab)
    await lab.api.create(DEPLOYMENTS.as_dicts(), workload("d", replicas=2), "team")
    await lab.clock.sleep(1)
    assert len(await lab.all(PODS, "team")) == 2
    await lab.api.delete(NAMESPACES, "team")
    await lab.clock.sleep(2)
    assert not await lab.exists(NAMESPACES, "team", None)
    for kind in (PODS, DEPLOYMENTS, CONFIGMAPS, EVENTS):
        assert await lab.all(kind, "team") == []


async def test_custom_objects_go_too_also_of_kinds_that_came_later(lab: ControlPlaneLab) -> None:
    await team(lab)
    await lab.clock.sleep(1)
    await lab.api.create(CRDS.as_dicts(), WIDGETS)
    await lab.clock.sleep(1)
    path = "/apis/example.com/v1/namespaces/team/widgets"
    body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    await lab.api.request("POST", path, body=body)
    await lab.clock.sleep(1)
    await lab.api.delete(NAMESPACES, "team")
    await lab.clock.sleep(2)
    assert not await lab.exists(NAMESPACES, "team", None)


async def test_a_service_leads_to_its_ready_pods(lab: ControlPlaneLab, workload: Make) -> None:
    await team(lab)
    body = workload("web", replicas=2)
    body["spec"]["template"]["spec"]["containers"][0]["ports"] = [{"name": "https", "containerPort": 8443}]
    await lab.api.create(DEPLOYMENTS.as_dicts(), body, "team")
    ports = [{"port": 443, "targetPort": "https"}]
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": ports}}
    await lab.api.create(SERVICES.as_dicts(), service, "team")
    await lab.clock.sleep(1)
    (subset,) = (await lab.get(ENDPOINTS, "web", "team"))["subsets"]
    assert [port["port"] for port in subset["ports"]] == [8443]
    addresses = sorted(pod["status"]["podIP"] for pod in await lab.all(PODS, "team"))
    assert sorted(each["ip"] for each in subset["addresses"]) == addresses
    piece = await lab.get(ENDPOINT_SLICES, "web-lab", "team")
    assert piece["metadata"]["labels"]["kubernetes.io/service-name"] == "web"
    assert [each["conditions"]["ready"] for each in piece["endpoints"]] == [True, True]
    await lab.api.scale(DEPLOYMENTS, "web", "team", 0)
    await lab.clock.sleep(1)
    assert (await lab.get(ENDPOINTS, "web", "team")).get("subsets", []) == []
