"""ResourceClaims in a whole cluster, installed with their rights: agent, controller, scheduler and kubelet together."""

from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.virtual_lab import InLab, VirtualLab, manifest

from tessera.api.dra.claims import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera.api.dra.resource_slices import RESOURCE_SLICES
from tessera.api.names import CLAIM_DRIVERS, DEVICE_API_DRA, DEVICE_API_LABEL, MIG_RESOURCE_PREFIX
from tessera.cli.install.manifests import InstallChoices
from tessera.cli.install.rendering import render
from tessera.kube.resources import NODES, PODS
from tessera.kube.resources.meta import resource_for

DRIVER = CLAIM_DRIVERS[0]
NODE = "node-1"


async def serve_claims(lab: VirtualLab) -> None:
    """``tessera install --claim-driver``, and the label of the node."""
    for each in render(InstallChoices(claim_driver=DRIVER)):
        metadata = each["metadata"]
        if each["kind"] == "DeviceClass" or "claims" in metadata["name"] or each["kind"] in {"DaemonSet", "Deployment"}:
            await lab.client.apply(resource_for(each), metadata["name"], each, metadata.get("namespace"))
    await choose(lab, DEVICE_API_DRA)
    for profile in ("1g.5gb", "3g.20gb"):
        selector = f"device.attributes['{DRIVER}'].profile == '{profile}'"
        exactly = {"deviceClassName": "mig.tessera.dev", "selectors": [{"cel": {"expression": selector}}]}
        spec = {"spec": {"devices": {"requests": [{"name": "slice", "exactly": exactly}]}}}
        name = profile.replace(".", "-")
        await lab.client.create(
            RESOURCE_CLAIM_TEMPLATES.as_dicts(), {"metadata": {"name": name}, "spec": spec}, "default"
        )


async def choose(lab: VirtualLab, way: str) -> None:
    await lab.client.merge_patch(NODES, NODE, {"metadata": {"labels": {DEVICE_API_LABEL: way}}})


async def pod(lab: VirtualLab, name: str, template: str) -> None:
    """A pod with a claim of its own, and no limits."""
    made = manifest(name, {})
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    await lab.client.create(PODS.as_dicts(), made, "default")


async def settles(lab: VirtualLab, read: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    """Waits until something that no informer of the lab shows is as it should be."""
    deadline = lab.clock.monotonic() + 300
    while (found := await read()) != wanted:
        assert lab.clock.monotonic() < deadline, f"{found} is not {wanted}"
        await lab.clock.sleep(1)


def test_pods_get_slices_by_claims_and_the_node_turns_back(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        async def devices() -> bool:
            return bool((await lab.client.list(RESOURCE_SLICES)).items)

        async def claims() -> int:
            return len((await lab.client.list(RESOURCE_CLAIMS, "default")).items)

        def offers_slices() -> bool:
            return any(name.startswith(MIG_RESOURCE_PREFIX) for name in lab.gpus(NODE))

        await serve_claims(lab)
        await settles(lab, devices, True)
        await lab.until(lambda: not offers_slices(), "no slice is offered by the device plugin")
        for name, template in (("small", "1g-5gb"), ("large", "3g-20gb")):
            await pod(lab, name, template)
        await lab.running("small", "large")
        made = lab.instaslice(NODE).spec.pod_allocation_requests
        assert sorted(each.pod_ref.name for each in made.values()) == ["large", "small"]
        await lab.delete("small")
        await lab.delete("large")
        await settles(lab, claims, 0)
        await lab.empty()
        await choose(lab, "deviceplugin")
        await settles(lab, devices, False)
        await lab.until(offers_slices, "slices are offered by the device plugin")
        await lab.create("limits", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("limits")

    in_lab(scenario, nodes="1xA100-40GB", own=True)
