"""DeviceTaintRules of Kubernetes 1.37: an administrator taints devices, whoever allocated them."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.device_claims import claim, claiming_pod, device_class, exactly, resource_slice

from tessera.clock import LoopClock, parse_rfc3339
from tessera.kube.client import Client
from tessera.kube.errors import Invalid
from tessera.kube.resources import NODES, PODS
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.scheduler.claim_binding import DEVICE_CLASSES, DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tessera_lab.simulation.virtual_time import run_virtual

Obj = dict[str, Any]

DRIVER = "gpu.example.com"


def rule(effect: str, **selector: str) -> Obj:
    taint = {"key": "example.com/broken", "effect": effect}
    return {"metadata": {"name": "r"}, "spec": {"deviceSelector": selector, "taint": taint}}


class Story:
    """One node with devices ``a`` and ``b``."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.client: Client = cluster.client("test")
        self.clock = cluster.clock

    async def begin(self) -> None:
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": None}
        await self.client.create(NODES.as_dicts(), {"metadata": {"name": "n1"}})
        status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
        await self.client.merge_patch(NODES, "n1", status, subresource="status")
        await self.client.create(RESOURCE_SLICES, resource_slice("s", DRIVER, "n1", {"name": "a"}, {"name": "b"}))
        await self.client.create(DEVICE_CLASSES, device_class("gpus", f'device.driver == "{DRIVER}"'))

    async def pod(self, name: str, **request: Any) -> None:
        await self.client.create(RESOURCE_CLAIMS, claim(name, exactly("gpu", "gpus", **request)), "default")
        body = claiming_pod(name, {"name": "gpu", "resourceClaimName": name}, terminationGracePeriodSeconds=0)
        await self.client.create(PODS.as_dicts(), body, "default")

    async def device(self, name: str) -> str:
        """The claim's device after a while; empty for none."""
        await self.clock.sleep(15)
        found = await self.client.get(RESOURCE_CLAIMS, name, "default")
        results = found["status"].get("allocation", {}).get("devices", {}).get("results", [{}])
        return str(results[0].get("device", ""))


def play(story: Callable[[Story], Awaitable[None]]) -> None:
    async def main() -> None:
        cluster = SimulatedCluster([], clock=LoopClock(1_800_000_000), options=ClusterOptions(kubernetes="1.37"))
        async with cluster.running():
            told = Story(cluster)
            await told.begin()
            await story(told)

    run_virtual(main())


@pytest.mark.parametrize(
    ("selector", "given"),
    [
        ({}, ""),
        ({"driver": DRIVER}, ""),
        ({"driver": DRIVER, "pool": "n1", "device": "a"}, "b"),
        ({"device": "a"}, "b"),
        ({"pool": "n2", "device": "a"}, "a"),
        ({"driver": "other.example.com"}, "a"),
    ],
)
def test_the_scheduler_keeps_off_devices_that_a_rule_selects(selector: dict[str, str], given: str) -> None:
    async def story(told: Story) -> None:
        await told.client.create(DEVICE_TAINT_RULES, rule("NoSchedule", **selector))
        await told.pod("p")
        assert await told.device("p") == given
        await told.pod("q", tolerations=[{"key": "example.com/broken", "operator": "Exists"}])
        assert await told.device("q") in {"a", "b"}

    play(story)


def test_a_rule_without_a_selector_selects_nothing() -> None:
    async def story(told: Story) -> None:
        body = rule("NoSchedule")
        del body["spec"]["deviceSelector"]
        await told.client.create(DEVICE_TAINT_RULES, body)
        await told.pod("p")
        assert await told.device("p") == "a"

    play(story)


def test_a_rule_that_goes_frees_the_devices() -> None:
    async def story(told: Story) -> None:
        await told.client.create(DEVICE_TAINT_RULES, rule("NoSchedule"))
        await told.pod("p")
        assert not await told.device("p")
        await told.client.delete(DEVICE_TAINT_RULES, "r")
        assert await told.device("p") == "a"

    play(story)


def test_a_rule_evicts_the_pods_of_its_devices_only() -> None:
    async def story(told: Story) -> None:
        for name in ("p", "q"):
            await told.pod(name)
        assert {await told.device("p"), await told.device("q")} == {"a", "b"}
        on_a = "p" if await told.device("p") == "a" else "q"
        await told.client.create(DEVICE_TAINT_RULES, rule("NoExecute", driver=DRIVER, device="a"))
        await told.clock.sleep(5)
        left = [each.metadata.name for each in (await told.client.list(PODS, "default")).items]
        assert left == [({"p", "q"} - {on_a}).pop()]

    play(story)


def test_a_rule_says_since_when_its_effect_holds() -> None:
    async def story(told: Story) -> None:
        made = await told.client.create(DEVICE_TAINT_RULES, rule("None"))
        since = made["spec"]["taint"]["timeAdded"]
        await told.clock.sleep(60)
        change = {"spec": {"taint": {"value": "x"}}}
        kept = await told.client.merge_patch(DEVICE_TAINT_RULES, "r", change)
        assert kept["spec"]["taint"]["timeAdded"] == since
        anew = await told.client.merge_patch(DEVICE_TAINT_RULES, "r", {"spec": {"taint": {"effect": "NoExecute"}}})
        assert parse_rfc3339(anew["spec"]["taint"]["timeAdded"]) == parse_rfc3339(since) + 60

    play(story)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (rule("PreferNoSchedule"), "spec.taint.effect: Unsupported value"),
        (rule("NoSchedule", device="A"), "spec.deviceSelector.device: Invalid value"),
        (rule("NoSchedule", driver="a_b"), "spec.deviceSelector.driver: Invalid value"),
        ({"metadata": {"name": "r"}, "spec": {"taint": {"effect": "None"}}}, "spec.taint.key: Required value"),
    ],
)
def test_a_wrong_rule_is_refused(body: Obj, text: str) -> None:
    async def story(told: Story) -> None:
        with pytest.raises(Invalid, match=text):
            await told.client.create(DEVICE_TAINT_RULES, body)

    play(story)
