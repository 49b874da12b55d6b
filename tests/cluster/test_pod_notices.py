"""An error of a card reaches every pod that holds a part of it, at once, and no other pod."""

from collections.abc import Iterable

import pytest
from tests.cluster.test_agent_lost import Failing
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.names import GPU_CONDITION
from tessera.kube.resources import Condition
from tessera.nvml.interface import CardAttributes, GpuEventKind
from tessera.nvml.simulated.machine_state import SimEvent

SHARES = {
    "sharing-profiles": {
        "four": "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
    }
}
LAYOUTS = {
    "mig-layouts": {
        "config.yaml": (
            "version: v1\nmig-configs:\n  halves:\n  - {devices: all, mig-enabled: true, mig-devices: {3g.20gb: 2}}\n"
        )
    }
}


def condition(lab: VirtualLab, name: str) -> Condition:
    """The pod's condition about its card; an empty one if it has none."""
    pod = lab.pod(name)
    found = pod.status.conditions if pod is not None else ()
    return next((each for each in found if each.type == GPU_CONDITION), Condition())


def device_health(lab: VirtualLab, name: str) -> set[str]:
    """The health of the pod's devices that kubelet reports (KEP-4680)."""
    pod = lab.existing_pod(name)
    listed = [each for container in pod.status.containers for each in container.allocated_resources_status]
    return {device.health for each in listed for device in each.resources}


def break_card(lab: VirtualLab, *, xid: int = 48, card: int = 0, node: str = "node-1", gi: int | None = None) -> None:
    machine = lab.machine(node)
    gpu = machine.uuids()[card]
    machine.set_attributes(gpu, CardAttributes(recovery_action=None))
    machine.report(SimEvent(GpuEventKind.XID, gpu, xid, gi))


async def are_told(lab: VirtualLab, names: Iterable[str], word: str = "GpuNeedsReset", seconds: float = 2.0) -> None:
    for name in names:
        await lab.until(lambda name=name: condition(lab, name).reason == word, f"{name} is told {word}", seconds)
        await lab.until(lambda name=name: len(lab.events_of(name, word)) == 1, f"{name} has the event", seconds)


SENTENCE = (
    "GPU 0: XID 48, memory lost data: an ECC error of two bits; not allocated until it is reset, which needs it empty:"
    " delete the pods on it, so that their owners start them on other cards"
)


@pytest.mark.parametrize(
    ("labels", "resource", "on_it"),
    [
        ({"layout": "all-disabled"}, "nvidia.com/gpu", 1),
        ({"layout": "all-disabled", "profile": "four"}, "nvidia.com/gpu", 4),
        ({"layout": "halves"}, "nvidia.com/mig-3g.20gb", 2),
        ({}, "nvidia.com/mig-3g.20gb", 2),
    ],
    ids=["whole card", "shares", "fixed MIG devices", "slices on demand"],
)
def test_every_holder_of_a_card_is_told_at_once_whatever_part_it_holds(
    in_lab: InLab, labels: dict[str, str], resource: str, on_it: int
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for name, data in (*SHARES.items(), *LAYOUTS.items()):
            await lab.config_map(name, data)
        await lab.label("node-1", **labels)
        if labels:
            await lab.becomes({resource: on_it})
        names = [f"pod-{number}" for number in range(on_it)]
        for name in names:
            await lab.create(name, {resource: 1})
        await lab.running(*names)
        assert not any(condition(lab, name).type for name in names)
        assert all(device_health(lab, name) == {"Healthy"} for name in names)
        break_card(lab)
        await are_told(lab, names)
        reported = {"Unhealthy"}
        await lab.until(lambda: all(device_health(lab, name) == reported for name in names), "kubelet reports it", 2)
        for name in names:
            found = condition(lab, name)
            assert (found.status, found.message) == ("False", SENTENCE)
            (event,) = lab.events_of(name, "GpuNeedsReset")
            assert (event.type, event.message) == ("Warning", SENTENCE)
        same = SENTENCE.removeprefix("GPU 0: ")
        await lab.until(lambda: lab.condition("GpuHealthy")[2].endswith(same), "the Node says the same", 2)

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_deployments_pod_is_told_and_its_neighbours_on_another_card_are_not(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create_owned("web", {"nvidia.com/gpu": 1})
        await lab.create("other", {"nvidia.com/gpu": 1})
        await lab.running("other")
        await lab.until(lambda: lab.ready_of("web"), "the ReplicaSet's pod runs")
        machine = lab.machine()
        web = lab.ready_of("web")
        held = next(uuid for uuid in lab.devices(web))
        break_card(lab, card=machine.uuids().index(held))
        await are_told(lab, [web])
        await lab.clock.sleep(60)
        assert condition(lab, "other") == Condition()

    in_lab(scenario, nodes="2xA100-40GB", mig_config="")


def test_the_error_of_an_instance_is_told_to_the_pods_in_it(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.config_map("mig-layouts", LAYOUTS["mig-layouts"])
        await lab.label("node-1", layout="halves")
        await lab.becomes({"nvidia.com/mig-3g.20gb": 2})
        for name in ("one", "two"):
            await lab.create(name, {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("one", "two")
        machine = lab.machine()
        (gpu,) = machine.uuids()
        instances = {each.compute_instances[0].mig_uuid: each.gi_id for each in machine.instances(gpu)}
        (held,) = lab.devices("one")
        break_card(lab, xid=94, gi=instances[held])
        await are_told(lab, ["one"], "GpuUnhealthy")
        await lab.clock.sleep(15)
        assert condition(lab, "two") == Condition()
        assert f"GPU 0 GPU instance {instances[held]}: XID 94" in condition(lab, "one").message
        await are_told(lab, ["one"], "GpuRecovered", 300)
        assert condition(lab, "one").status == "True"
        assert lab.events_of("one", "GpuRecovered")[0].type == "Normal"

    in_lab(scenario, nodes="1xA100-40GB", mig_config="")


def test_a_pod_that_starts_on_a_degraded_card_is_told_and_again_when_it_is_well(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        break_card(lab, xid=63)
        await lab.until(lambda: lab.condition("GpuHealthy")[1] == "CardDegraded", "the card is degraded")
        await lab.create("late", {"nvidia.com/gpu": 1})
        await lab.running("late")
        await are_told(lab, ["late"], "GpuDegraded", 30)
        assert condition(lab, "late").status == "True"
        await are_told(lab, ["late"], "GpuRecovered", 300)

    in_lab(scenario, nodes="1xA100-40GB", mig_config="")


def test_a_restarted_agent_repeats_no_event_and_loses_none(in_lab: InLab) -> None:
    failing = Failing()

    async def scenario(lab: VirtualLab) -> None:
        for name in ("one", "two"):
            await lab.create(name, {"nvidia.com/gpu": 1})
        await lab.running("one", "two")
        break_card(lab, card=0)
        first = next(name for name in ("one", "two") if lab.machine().uuids()[0] in lab.devices(name))
        await are_told(lab, [first])
        failing.turn("node-1")
        await lab.clock.sleep(5)
        failing.turn("")
        await lab.until(lambda: lab.gpus() == {"nvidia.com/gpu": 1}, "the agent is back")
        await lab.clock.sleep(60)
        break_card(lab, card=1)
        await are_told(lab, {"one", "two"} - {first}, seconds=30)
        assert len(lab.events_of(first, "GpuNeedsReset")) == 1
        assert lab.events_of(first, "GpuNeedsReset")[0].count == 1

    in_lab(scenario, nodes="2xA100-40GB", mig_config="", cluster_type=failing.cluster)


@pytest.mark.parametrize("layout", ["halves", ""], ids=["fixed MIG device", "slice on demand"])
def test_a_card_that_was_lost_while_no_agent_ran_is_told_to_the_pods_on_its_devices(in_lab: InLab, layout: str) -> None:
    failing = Failing()

    async def scenario(lab: VirtualLab) -> None:
        if layout:
            await lab.config_map("mig-layouts", LAYOUTS["mig-layouts"])
            await lab.label("node-1", layout=layout)
            await lab.becomes({"nvidia.com/mig-3g.20gb": 4})
        await lab.create("one", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("one")
        machine = lab.machine()
        held = set(lab.devices("one"))
        failing.turn("node-1")
        await lab.clock.sleep(5)
        for gpu in machine.uuids():
            if held & {compute.mig_uuid for each in machine.instances(gpu) for compute in each.compute_instances}:
                machine.lose(gpu)
        failing.turn("")
        await are_told(lab, ["one"], "GpuNeedsReboot", seconds=120)
        assert "not allocated until the node is rebooted" in condition(lab, "one").message

    in_lab(scenario, nodes="2xA100-40GB", cluster_type=failing.cluster)


@pytest.mark.soak
def test_an_error_that_returns_again_and_again_does_not_flood_its_pod(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("one", {"nvidia.com/gpu": 1})
        await lab.running("one")
        for _ in range(240):  # an hour in which the error returns every 15 s
            break_card(lab, xid=94)
            break_card(lab, xid=63)
            await lab.clock.sleep(15)
        notes = [event for event in lab.events.cache.values() if event.reason.startswith("Gpu")]
        assert len([event for event in notes if event.involved_object.name == "one"]) == 1

    in_lab(scenario, nodes="1xA100-40GB", mig_config="")
