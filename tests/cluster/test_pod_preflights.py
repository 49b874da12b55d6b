"""A pod asks to have its cards tested before it starts: it runs on tested ones, and a card that fails is taken away."""

import json
from typing import Any

import pytest
from tests.support.virtual_lab import InLab, VirtualLab, manifest

from tessera.api.names import GPU_CONDITION, POD_PREFLIGHT, REPAIRS_KEY, REPAIRS_MAP
from tessera.api.nodes.preflights import CardTest, decode_tests
from tessera.kube.resources import CONFIGMAPS, EVENTS, NODES, PODS, REPLICASETS, Pod
from tessera.nvml.errors import UnknownNvmlError

FORMS = [("nvidia.com/gpu", ""), ("nvidia.com/mig-3g.20gb", "dynamic"), ("nvidia.com/mig-3g.20gb", "all-3g.20gb")]
each_form = pytest.mark.parametrize(("resource", "layout"), FORMS, ids=["whole", "slice", "fixed MIG"])


async def allow(lab: VirtualLab, **repairs: Any) -> None:
    text = json.dumps({"podPreflight": True} | repairs)
    await lab.client.apply(CONFIGMAPS, REPAIRS_MAP, {"data": {REPAIRS_KEY: text}}, "tessera-system")
    await lab.clock.sleep(5)


async def create(lab: VirtualLab, name: str, *containers: dict[str, int], asks: str = "true", **spec: Any) -> None:
    """A ReplicaSet of one pod that asks for the test."""
    labels = {"app": name}
    body = manifest(name, *containers, restartPolicy="Always")["spec"] | spec
    template = {"metadata": {"labels": labels, "annotations": {POD_PREFLIGHT: asks}}, "spec": body}
    wanted = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    await lab.client.create(REPLICASETS.as_dicts(), wanted, "default")


def results(lab: VirtualLab, node: str) -> list[CardTest]:
    return list(decode_tests(lab.existing_node(node).metadata.annotations))


async def told(lab: VirtualLab, name: str = "") -> dict[str, str]:
    """The results that pods were told, by reason."""
    found = (await lab.client.list(EVENTS, "default")).items
    return {
        each.reason: each.message
        for each in found
        if each.reason.startswith("GpuPreflight") and each.involved_object.name.startswith(name)
    }


async def agents(lab: VirtualLab) -> list[Pod]:
    found = (await lab.client.list(PODS, "tessera-system")).items
    return [each for each in found if each.metadata.name.startswith("tessera-agent")]


def spoil(lab: VirtualLab, node: str) -> None:
    machine = lab.machine(node)
    machine.fail("compute", UnknownNvmlError, times=None, gpu=machine.uuids()[0])


@each_form
def test_the_pod_starts_after_its_test_and_the_result_is_on_pod_and_node(
    in_lab: InLab, resource: str, layout: str
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await allow(lab)
        await create(lab, "web", {resource: 1})
        await lab.until(lambda: lab.ready_of("web"), "the pod runs")
        home = lab.existing_pod(lab.ready_of("web")).spec.node_name
        await lab.until(lambda: results(lab, home), "the node shows the test")
        (test,) = results(lab, home)
        assert (test.tool, test.finding, test.part >= 0) == ("simulated", "", resource != "nvidia.com/gpu")
        text = (await told(lab))["GpuPreflightPassed"]
        assert text.startswith("GPU 0")
        assert "passed (simulated: nothing was computed)" in text

    in_lab(scenario, nodes="A100-40GB", mig_config=layout)


@each_form
def test_a_card_that_fails_is_withheld_and_the_owner_makes_the_pod_anew_elsewhere(
    in_lab: InLab, resource: str, layout: str
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await allow(lab, evict=True)
        spoil(lab, "node-1")
        await lab.client.merge_patch(NODES, "node-2", {"spec": {"unschedulable": True}})
        await create(lab, "web", {resource: 1})
        await lab.until(lambda: lab.condition("GpuHealthy", "node-1")[0] == "False", "its card is withheld")
        await lab.client.merge_patch(NODES, "node-2", {"spec": {"unschedulable": None}})
        await lab.until(lambda: lab.ready_of("web"), "its owner made it anew", 900)
        assert lab.existing_pod(lab.ready_of("web")).spec.node_name == "node-2"
        text = (await told(lab))["GpuPreflightFailed"]
        assert "the preflight of a pod failed: " in text
        assert "not allocated until it is reset, which needs it empty: Tessera evicts pods with an owner from" in text
        await lab.until(lambda: lab.gpus("node-1").get(resource), "the empty card was reset and is offered again", 900)

    in_lab(scenario, nodes="A100-40GB,A100-40GB", mig_config=layout)


@each_form
def test_the_start_is_refused_with_the_sentence_and_the_card_gets_no_other_pod(
    in_lab: InLab, resource: str, layout: str
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await allow(lab)
        (node,) = lab.cluster.nodes
        spoil(lab, node)
        await create(lab, "web", {resource: 1})
        await lab.until(lambda: lab.condition("GpuHealthy", node)[0] == "False", "the card is withheld")
        await lab.clock.sleep(120)
        assert not lab.ready_of("web")
        (pod,) = [each for each in lab.pods.cache.values() if each.metadata.labels.get("app") == "web"]
        condition = pod.status.condition(GPU_CONDITION)
        assert condition is not None
        assert (condition.status, condition.reason) == ("False", "GpuNeedsReset")
        text = (await told(lab))["GpuPreflightFailed"]
        assert text.partition("GPU 0 ")[2]
        assert "delete the pods on it, so that their owners start them on other cards" in condition.message
        (test,) = results(lab, node)
        first = test.at
        await lab.clock.sleep(600)
        assert [each.at for each in results(lab, node)] == [first], "a start that is tried again tests nothing"
        assert lab.gpus(node).get(resource, 0) == 0

    in_lab(scenario, nodes="A100-40GB", mig_config=layout)


def test_a_pod_may_ask_while_its_slice_is_made(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await allow(lab)
        (node,) = lab.cluster.nodes
        lab.machine(node).slow("create_gpu_instance", 10.0)
        await create(lab, "web", {"nvidia.com/mig-3g.20gb": 1}, asks="")
        await lab.clock.sleep(8)
        (name,) = [each.metadata.name for each in lab.pods.cache.values() if each.metadata.labels.get("app") == "web"]
        asks = {"metadata": {"annotations": {POD_PREFLIGHT: "true"}}}
        await lab.client.merge_patch(PODS, name, asks, "default")
        await lab.until(lambda: lab.ready_of("web"), "the pod runs")
        assert "GpuPreflightPassed" in await told(lab)

    in_lab(scenario, nodes="A100-40GB", mig_config="dynamic")


@pytest.mark.parametrize(("repairs", "asks"), [({"podPreflight": False}, "true"), ({}, "yes"), ({}, "")])
def test_nothing_is_tested_unless_pod_and_administrator_want_it(
    in_lab: InLab, repairs: dict[str, Any], asks: str
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await allow(lab, **repairs)
        (node,) = lab.cluster.nodes
        spoil(lab, node)
        await create(lab, "web", {"nvidia.com/gpu": 1}, asks=asks)
        await lab.until(lambda: lab.ready_of("web"), "the pod runs")
        assert (results(lab, node), await told(lab)) == ([], {})

    in_lab(scenario, nodes="A100-40GB", mig_config="")


def test_the_agent_may_die_in_the_test_and_kubelet_tries_again(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await allow(lab)
        (node,) = lab.cluster.nodes
        lab.machine(node).slow("compute", 5.0)
        await create(lab, "web", {"nvidia.com/gpu": 1})
        await lab.clock.sleep(4)
        (agent,) = [each.metadata.name for each in await agents(lab)]
        await lab.client.delete(PODS, agent, "tessera-system", grace_seconds=0)
        await lab.until(lambda: lab.ready_of("web"), "the pod runs", 600)
        assert "GpuPreflightPassed" in await told(lab)

    in_lab(scenario, nodes="A100-40GB", mig_config="")


def test_a_card_that_hangs_does_not_hold_the_start_for_ever(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await allow(lab)
        (node,) = lab.cluster.nodes
        lab.machine(node).slow("compute", 1000.0)
        await create(lab, "web", {"nvidia.com/gpu": 1})
        await lab.until(lambda: lab.condition("GpuHealthy", node)[0] == "False", "the card is withheld", 120)
        assert "no answer within 15 s" in (await told(lab))["GpuPreflightFailed"]

    in_lab(scenario, nodes="A100-40GB", mig_config="")
