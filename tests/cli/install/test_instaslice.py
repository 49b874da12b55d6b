"""Nothing is installed beside InstaSlice, whose parts are recognized by their names and images."""

import asyncio
from typing import Any

import pytest

from tessera.cli.install.preflight import refuse_instaslice
from tessera.doctor.platform_checks import is_instaslice
from tessera.kube.resources import DAEMONSETS, DEPLOYMENTS, NAMESPACES

NAMESPACE = "instaslice-system"
MANAGER = "instaslice-operator-controller-manager"


def workload(name: str, image: str = "registry.example/manager:1", **spec: Any) -> dict[str, Any]:
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "manager", "image": image}]}}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": pod, **spec}}


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (workload(MANAGER), True),
        (workload("instaslice-operator-controller-daemonset"), True),
        (workload("renamed", "quay.io/openshift/instaslicev2-daemonset:latest"), True),
        (workload("renamed", "registry.example/das/das-daemonset@sha256:0"), True),
        (workload("mine", "registry.example/instaslice-team/tessera:0.2.0"), False),
        (workload("tessera-controller", "tessera:0.2.0"), False),
        (workload(MANAGER, replicas=0), False),
        ({**workload("instaslice-operator-controller-daemonset"), "status": {"desiredNumberScheduled": 0}}, False),
    ],
)
def test_a_workload_of_instaslice_is_recognized(item: dict[str, Any], found: bool) -> None:
    assert is_instaslice(item) is found


def test_an_installation_beside_it_is_refused_with_what_to_do(place: Any) -> None:
    async def scenario() -> None:
        client = place.client()
        assert await refuse_instaslice(client) == ""
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await client.create(DEPLOYMENTS.as_dicts(), workload(MANAGER), NAMESPACE)
        daemon_set = workload("instaslice-operator-controller-daemonset")
        await client.create(DAEMONSETS.as_dicts(), daemon_set, NAMESPACE)
        text = await refuse_instaslice(client)
        assert text.startswith(f"InstaSlice slices the same cards: deployment/{MANAGER} in {NAMESPACE}, daemonset/")
        assert "keep its Instaslice objects" in text
        scaled = {"spec": {"replicas": 0}}
        await client.merge_patch(DEPLOYMENTS, MANAGER, scaled, NAMESPACE)
        await client.delete(DAEMONSETS, daemon_set["metadata"]["name"], NAMESPACE)
        assert await refuse_instaslice(client) == ""

    asyncio.run(scenario())
