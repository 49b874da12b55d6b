"""Limits that become ResourceClaims, where a namespace or a node selector chooses so."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster.test_resource_claims import Scenario
from tests.cluster.test_resource_claims import in_lab as in_claims_lab
from tests.support.device_claims import device_class, profile_class
from tests.support.virtual_lab import VirtualLab

from tessera.api.names import DEVICE_API_DRA, DEVICE_API_LABEL
from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES
from tessera.dra.node_devices import DRIVER
from tessera.kube.errors import Forbidden, Invalid
from tessera.kube.resources import NAMESPACES, NODES, PODS, RESOURCE_QUOTAS

__all__ = ["in_claims_lab"]

CHOICE = {DEVICE_API_LABEL: DEVICE_API_DRA}
SMALL, BIG = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"


@pytest.fixture
def in_lab(in_claims_lab: Callable[..., Any]) -> Callable[..., None]:
    """Runs a scenario in a cluster whose nodes give their slices to claims, with a class for two profiles."""

    def run(scenario: Scenario, nodes: str = "1xA100-40GB") -> None:
        async def prepared(lab: VirtualLab) -> None:
            for profile in ("1g.5gb", "3g.20gb"):
                await lab.client.create(DEVICE_CLASSES.as_dicts(), profile_class(DRIVER, profile, guarded=True))
            await lab.clock.sleep(1)
            await scenario(lab)

        in_claims_lab(prepared, nodes)

    return run


async def choose(lab: VirtualLab) -> None:
    await lab.client.merge_patch(NAMESPACES, "default", {"metadata": {"labels": CHOICE}})


async def create(lab: VirtualLab, name: str, limits: dict[str, int], **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": {"limits": {key: str(n) for key, n in limits.items()}}}
    body = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
    return await lab.client.create(PODS.as_dicts(), body, "default")


async def templates(lab: VirtualLab) -> set[str]:
    return {each.metadata.name for each in (await lab.client.list(RESOURCE_CLAIM_TEMPLATES, "default")).items}


def test_a_namespace_turns_limits_into_claims(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await choose(lab)
        made = await create(lab, "p", {SMALL: 2, "cpu": 1})
        assert made["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1"}
        assert made["spec"]["schedulingGates"]
        await create(lab, "q", {SMALL: 2})
        await lab.running("p", "q")
        assert [each[1] for each in lab.hardware()] == ["1g.5gb"] * 4
        assert len(set(lab.devices("p", "main"))) == 2
        assert await templates(lab) == {"mig-1g.5gb.tessera.dev-x2"}
        await lab.delete("p")
        await lab.delete("q")
        await lab.empty()
        await lab.client.delete(DEVICE_CLASSES, "mig-1g.5gb.tessera.dev")
        await lab.clock.sleep(60)
        assert await templates(lab) == set()

    in_lab(scenario)


def test_a_node_selector_chooses_claims_and_other_pods_go_to_other_nodes(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.merge_patch(NODES, "node-2", {"metadata": {"labels": {DEVICE_API_LABEL: None}}})
        await create(lab, "by-claim", {BIG: 1}, nodeSelector=CHOICE)
        await create(lab, "by-limit", {BIG: 1})
        await lab.running("by-claim", "by-limit")
        assert (lab.node_of("by-claim"), lab.node_of("by-limit")) == ("node-1", "node-2")

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")


def test_what_no_class_stands_for_stays_a_limit(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await choose(lab)
        made = await create(lab, "p", {"nvidia.com/mig-2g.10gb": 1})
        assert "resourceClaims" not in made["spec"]
        other = device_class("nics", "device.driver == 'nic.example.com'", extendedResourceName="example.com/nic")
        await lab.client.create(DEVICE_CLASSES.as_dicts(), other)
        await lab.clock.sleep(1)
        made = await create(lab, "q", {"example.com/nic": 1})
        assert "resourceClaims" not in made["spec"]

    in_lab(scenario)


def test_one_quota_counts_pods_with_limits_and_with_claims_once(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.merge_patch(NODES, "node-2", {"metadata": {"labels": {DEVICE_API_LABEL: None}}})
        hard = {f"requests.{SMALL}": "3"}
        await lab.client.create(RESOURCE_QUOTAS, {"metadata": {"name": "small"}, "spec": {"hard": hard}}, "default")
        await lab.clock.sleep(5)
        await create(lab, "by-limit", {SMALL: 1})
        await choose(lab)
        await create(lab, "by-claim", {SMALL: 2})
        await lab.running("by-limit", "by-claim")
        await lab.clock.sleep(30)
        found = await lab.client.get(RESOURCE_QUOTAS, "small", "default")
        assert found.status.used[f"requests.{SMALL}"] == "3"
        await create(lab, "late", {SMALL: 1})
        await lab.clock.sleep(60)
        assert not lab.ready("late")
        await lab.delete("by-limit")
        await lab.running("late")

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")


def test_a_template_that_cannot_be_made_refuses_the_pod_with_the_reason(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await choose(lab)
        hard = {"count/resourceclaimtemplates.resource.k8s.io": "0"}
        await lab.client.create(RESOURCE_QUOTAS, {"metadata": {"name": "none"}, "spec": {"hard": hard}}, "default")
        await lab.clock.sleep(5)
        with pytest.raises((Invalid, Forbidden), match="of its limits cannot be made"):
            await create(lab, "p", {SMALL: 1})

    in_lab(scenario)


def test_a_dry_run_makes_no_template(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await choose(lab)
        container = {"name": "main", "image": "i", "resources": {"limits": {SMALL: "1"}}}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
        path = PODS.path("default")
        await lab.client.request("POST", path, query=[("dryRun", "All")], body=body)
        assert await templates(lab) == set()

    in_lab(scenario)
