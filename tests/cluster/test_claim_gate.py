"""The webhook's gate for pods with ResourceClaims, whoever makes them; nothing rests on it."""

from collections.abc import Callable
from typing import Any

from tests.cluster.test_resource_claims import claiming, in_lab, profile, template
from tests.support.device_claims import claim, claiming_pod, device_class, exactly, resource_slice
from tests.support.virtual_lab import VirtualLab

from tessera.api.names import GATE
from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIMS
from tessera.dra.node_devices import DRIVER
from tessera.dra.resource_slices import RESOURCE_SLICES
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.resources import DEPLOYMENTS, PODS, Pod
from tessera.kube.resources.meta import Resource

__all__ = ["in_lab"]

OTHER = "nic.example.com"


class Gates:
    """The names of the pods that were created with the gate, by their owner's kind."""

    def __init__(self, lab: VirtualLab) -> None:
        self.found: list[tuple[str, bool]] = []
        lab.pods.add_handler(self._changed)

    def _changed(self, event: WatchEvent[Pod]) -> None:
        pod = event.object
        if event.kind is EventKind.ADDED and pod.spec.resource_claims:
            owner = pod.metadata.owner_references[0].kind if pod.metadata.owner_references else ""
            self.found.append((owner, any(each.name == GATE for each in pod.spec.scheduling_gates)))


async def another_driver(lab: VirtualLab) -> None:
    """A device of another driver on the first node, with a class."""
    await lab.client.create(DEVICE_CLASSES.as_dicts(), device_class("nics", f"device.driver == '{OTHER}'"))
    await lab.client.create(
        RESOURCE_SLICES.as_dicts(), resource_slice("nics", OTHER, "node-1", {"name": "nic-0"}, {"name": "nic-1"})
    )


async def bound(lab: VirtualLab, name: str) -> None:
    """Waits until the pod has a node, where no plugin of the other driver lets it start."""
    await lab.until(lambda: (pod := lab.pod(name)) is not None and pod.spec.node_name, f"{name} is bound")


def is_gated(pod: Pod | None) -> bool:
    return pod is not None and any(each.name == GATE for each in pod.spec.scheduling_gates)


def test_pods_of_every_owner_are_gated_and_run(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", profile("1g.5gb"))
        gates = Gates(lab)
        labels = {"app": "a"}
        spec = claiming_pod("unused", {"name": "gpu", "resourceClaimTemplateName": "one"})["spec"]
        pods = {"metadata": {"labels": labels}, "spec": spec}
        run = {"selector": {"matchLabels": labels}, "template": pods}
        once = {"template": {"spec": {**spec, "restartPolicy": "Never"}}}
        for group, kind, content in (
            ("apps", "Deployment", {**run, "replicas": 2}),
            ("apps", "StatefulSet", {**run, "serviceName": "s"}),
            ("apps", "DaemonSet", run),
            ("batch", "Job", once),
        ):
            resource: Resource[Any] = Resource(group, "v1", f"{kind.lower()}s", kind, True, dict)
            await lab.client.create(resource, {"metadata": {"name": kind.lower()}, "spec": content}, "default")
        await claiming(lab, "alone", "one")

        def run_all() -> bool:
            return (
                sum(lab.ready(each.metadata.name) for each in lab.pods.cache.values() if each.spec.resource_claims) == 6
            )

        await lab.until(run_all, "six pods run")
        owners = ["", "DaemonSet", "Job", "ReplicaSet", "ReplicaSet", "StatefulSet"]
        assert sorted(gates.found) == [(owner, True) for owner in owners]
        events = [each for each in lab.events.cache.values() if each.reason == "FailedScheduling"]
        assert not [each for each in events if each.involved_object.namespace == "default"]

    in_lab(scenario)


def test_claims_of_other_drivers_and_claims_that_are_not_there_yet_get_no_gate(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await another_driver(lab)
        gates = Gates(lab)
        await template(lab, "nic", exactly("nic", "nics"))
        await claiming(lab, "plain", "nic")
        await claiming(lab, "early", "late")
        await claiming(lab, "named", "also-late", shared=True)
        await bound(lab, "plain")
        assert gates.found == [("", False)] * 3
        await template(lab, "late", profile("1g.5gb"))
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("also-late", profile("2g.10gb")), "default")
        await lab.running("early", "named")

    in_lab(scenario)


def test_pods_with_one_named_claim_leave_the_gate_together(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        gates = Gates(lab)
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("both", profile("3g.20gb")), "default")
        for name in ("first", "second"):
            await claiming(lab, name, "both", shared=True)
        await lab.running("first", "second")
        await claiming(lab, "third", "both", shared=True)
        await lab.running("third")
        assert gates.found == [("", True), ("", True), ("", False)]  # allocated by then

    in_lab(scenario)


def test_a_pod_at_the_gate_is_freed_once_its_class_is_another_drivers(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await another_driver(lab)
        chosen = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].profile == '7g.40gb'"
        await lab.client.create(DEVICE_CLASSES.as_dicts(), device_class("best", chosen))
        await template(lab, "any", exactly("r0", "best"))
        await claiming(lab, "holder", "any")
        await lab.running("holder")
        await claiming(lab, "waits", "any")
        await lab.until(lambda: is_gated(lab.pod("waits")), "it waits at the gate")
        await lab.clock.sleep(5.0)
        assert is_gated(lab.pod("waits"))
        selectors = [{"cel": {"expression": f"device.driver == '{OTHER}'"}}]
        await lab.client.merge_patch(DEVICE_CLASSES, "best", {"spec": {"selectors": selectors}})
        await bound(lab, "waits")
        gates = Gates(lab)
        await claiming(lab, "next", "any")
        await bound(lab, "next")
        assert ("", True) not in gates.found[-1:]

    in_lab(scenario)


def test_pods_at_the_gate_are_freed_once_nobody_serves_claims(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "whole", profile("7g.40gb"))
        for name in ("holder", "waits"):
            await claiming(lab, name, "whole")
            await lab.clock.sleep(5.0)
        await lab.running("holder")
        assert is_gated(lab.pod("waits"))
        for name in ("tessera-controller", "tessera-webhook"):
            found = await lab.client.get(DEPLOYMENTS.as_dicts(), name, "tessera-system")
            (container,) = found["spec"]["template"]["spec"]["containers"]
            container["args"] = [each for each in container["args"] if not each.startswith("--claim-driver")]
            spec = {"template": {"spec": {"containers": [container]}}}
            await lab.client.merge_patch(DEPLOYMENTS, name, {"spec": spec}, "tessera-system")
        await lab.until(lambda: not is_gated(lab.pod("waits")), "it is free")
        assert lab.ready("holder")

    in_lab(scenario)


def test_without_a_webhook_pods_with_claims_run(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", profile("1g.5gb"))

        def refuse(_review: bytes) -> bytes:
            raise ValueError("out of order")

        for key in [key for key in lab.cluster.reviewers if key[1].endswith("claiming-pod")]:
            lab.cluster.reviewers[key] = refuse
        gates = Gates(lab)
        await claiming(lab, "p", "one")
        await lab.running("p")
        assert gates.found == [("", False)]

    in_lab(scenario)


def test_a_pod_that_its_author_bound_gets_no_gate(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", profile("1g.5gb"))
        body = claiming_pod("bound", {"name": "gpu", "resourceClaimTemplateName": "one"}, nodeName="node-1")
        made = await lab.client.create(PODS, body, "default")
        assert not is_gated(made)

    in_lab(scenario)
