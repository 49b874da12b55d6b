"""Pods that say what they need, on a cluster with cards of every kind: they run on what is just large enough."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.virtual_lab import InLab, VirtualLab, manifest

from tessera.kube.errors import Invalid
from tessera.kube.resources import PODS

#: node-1 is cut on demand, node-2 into fixed slices, node-3 shared, node-4 and node-5 have whole cards.
NODES = "4xA100-40GB,4xA100-40GB,4xA100-40GB,2xH100-80GB,4xT4"
PROFILES = {
    "default": "version: v1\n",
    "slice-5": "version: v1\nsharing: {timeSlicing: {renameByDefault: true, failRequestsGreaterThanOne: true, "
    "resources: [{name: nvidia.com/gpu, replicas: 5}]}}\n",
}
LAYOUTS = """
version: v1
mig-configs:
  2x2g.10gb-3x1g.5gb:
  - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 3, 2g.10gb: 2}}
"""
SHARED = "nvidia.com/gpu.shared"


@pytest.fixture
def mixed(in_lab: InLab) -> Callable[..., None]:
    """Runs a scenario once all nodes offer what they should."""

    def run(scenario: Callable[[Any], Any]) -> None:
        async def with_layouts(lab: VirtualLab) -> None:
            await lab.config_map("sharing-profiles", PROFILES)
            await lab.config_map("mig-layouts", {"config.yaml": LAYOUTS})
            await lab.label("node-1", layout="dynamic")
            await lab.label("node-2", layout="2x2g.10gb-3x1g.5gb")
            await lab.label("node-3", profile="slice-5")
            await lab.until(lambda: lab.offers("node-1"), "node-1 is cut on demand")
            await lab.becomes({"nvidia.com/mig-1g.5gb": 12, "nvidia.com/mig-2g.10gb": 8}, "node-2")
            await lab.becomes({SHARED: 20}, "node-3")
            await lab.until(lambda: SHARED in said(lab, "node-3") and "dynamic-slice" in said(lab, "node-1"), "told")
            await lab.clock.sleep(1)
            await scenario(lab)

        in_lab(with_layouts, nodes=NODES, mig_config="")

    return run


def said(lab: VirtualLab, node: str) -> str:
    """The annotation of a node."""
    text: str = lab.existing_node(node).metadata.annotations.get("tessera.dev/offers", "")
    return text


async def create(lab: VirtualLab, name: str, spec: dict[str, Any] | None = None, /, **needs: str) -> Any:
    """A pod of one container that says what it needs; returns it as stored."""
    body = manifest(name, {}, **(spec or {}))
    body["metadata"]["annotations"] = {f"tessera.dev/{key.replace('_', '-')}": text for key, text in needs.items()}
    return await lab.client.create(PODS.as_dicts(), body, "default")


def chosen(lab: VirtualLab, name: str) -> tuple[str, str]:
    """Returns the resource chosen for a pod, and its node."""
    pod = lab.existing_pod(name)
    return pod.metadata.annotations["tessera.dev/chosen-resource"], pod.spec.node_name


WANTED: dict[str, tuple[dict[str, str], str, str]] = {
    "fixed-slice": ({"gpu_memory": "5Gi"}, "nvidia.com/mig-1g.5gb", "node-2"),
    "share": ({"gpu_memory": "8Gi"}, SHARED, "node-3"),
    "small-slice-on-demand": ({"gpu_memory": "10Gi"}, "nvidia.com/mig-1g.10gb", "node-1"),
    "slice-on-demand": ({"gpu_memory": "20Gi"}, "nvidia.com/mig-3g.20gb", "node-1"),
    "large-card": ({"gpu_memory": "64Gi"}, "nvidia.com/gpu", "node-4"),
    "new-card": ({"compute_capability": ">=9.0"}, "nvidia.com/gpu", "node-4"),
    "named-card": ({"product": "T4", "ecc": "true"}, "nvidia.com/gpu", "node-5"),
}


def test_pods_run_on_the_smallest_thing_that_will_do(mixed: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for name, (needs, _, _) in WANTED.items():
            await create(lab, name, **needs)
        await lab.running(*WANTED)
        assert {name: chosen(lab, name) for name in WANTED} == {
            name: (resource, node) for name, (_, resource, node) in WANTED.items()
        }

    mixed(scenario)


def test_slices_that_stand_are_not_made_anew_and_pods_for_them_wait_when_all_are_taken(
    mixed: Callable[..., None],
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        names = [f"p{number}" for number in range(12)]
        for name in names:
            await create(lab, name, {"terminationGracePeriodSeconds": 1}, gpu_memory="5Gi")
        await lab.running(*names)
        assert {chosen(lab, name) for name in names} == {("nvidia.com/mig-1g.5gb", "node-2")}
        pod = await create(lab, "late", gpu_memory="5Gi")
        assert "schedulingGates" not in pod["spec"]
        await lab.clock.sleep(60)
        assert lab.phase("late") == "Pending"
        await lab.client.delete(PODS, "p3", "default")
        await lab.running("late")
        assert lab.hardware("node-1") == []

    mixed(scenario)


def test_a_pod_whose_author_chose_the_nodes_gets_the_smallest_of_those(mixed: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        on_demand = {"nodeSelector": {"nvidia.com/mig.config": "dynamic"}}
        pod = await create(lab, "p", on_demand, gpu_memory="5Gi")
        assert pod["spec"]["schedulingGates"] == [{"name": "instaslice.redhat.com/accelerator"}]
        await lab.running("p")
        assert chosen(lab, "p") == ("nvidia.com/mig-1g.5gb", "node-1")

    mixed(scenario)


def test_what_cannot_be_is_said_at_once(mixed: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        with pytest.raises(Invalid) as caught:
            await create(lab, "p", gpu_memory="200Gi")
        for fact in ("the most memory that one has is 80Gi", "The cluster has 2 nvidia.com/gpu"):
            assert fact in str(caught.value)
        with pytest.raises(Invalid) as caught:
            await lab.create("q", {SHARED: 2})
        for fact in ('container "c0"', f"asks for 2 of {SHARED}", "every node that has it gives a"):
            assert fact in str(caught.value)

    mixed(scenario)
