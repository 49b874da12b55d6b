"""Namespaces with the label tessera.dev/placement: managed, on the lab: whole cards in the order of Tessera."""

from typing import Any

from tests.support.virtual_lab import InLab, VirtualLab, manifest

from tessera.api.names import SLICE_PROMISED_CONDITION
from tessera.api.nodes.node_cards import LINKS_ANNOTATION, decode_links
from tessera.clock import parse_rfc3339
from tessera.explain.explanation import parse_query
from tessera.explain.query import explain
from tessera.kube.resources import NAMESPACES, NODES, PODS

ONE, TWO, ALL = ({"nvidia.com/gpu": count} for count in (1, 2, 4))


def test_whole_cards_are_gated_placed_and_pinned_and_the_next_in_order_follows(managed: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("first", ALL)
        await lab.running("first")
        assert lab.existing_pod("first").spec.node_selector == {"kubernetes.io/hostname": "node-1"}
        await lab.create("second", TWO)
        await lab.until(lambda: lab.events_of("second", "SliceWaiting"), "it is told why it waits")
        assert lab.gates("second") == ["instaslice.redhat.com/accelerator"]
        assert "fewer than 2 x nvidia.com/gpu free" in lab.events_of("second", "SliceWaiting")[0].message
        (found,) = (await explain(lab.client, lab.clock, parse_query("second"), "default")).answers
        assert found.case == "full"
        assert found.verdict == "waits for room; fewer than 2 x nvidia.com/gpu free"
        assert found.facts[:2] == ("it requests 2 x nvidia.com/gpu", "1 node has 4 of them; pods hold 4")
        assert "pod default/first (4 x nvidia.com/gpu" in found.help[0]
        await lab.delete("first")
        await lab.running("second")
        assert len(lab.devices("second")) == 2

    managed(scenario)


def test_pods_of_other_namespaces_are_not_touched_and_count_as_taken(managed: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(NAMESPACES, {"metadata": {"name": "free"}})
        await lab.client.create(PODS.as_dicts(), manifest("outside", {"nvidia.com/gpu": 3}), "free")

        async def outside() -> Any:
            return await lab.client.get(PODS, "outside", "free")

        while (await outside()).status.phase != "Running":
            await lab.clock.sleep(1)
        pod = await outside()
        assert not pod.spec.scheduling_gates
        assert not pod.spec.node_selector
        await lab.create("inside", TWO)
        await lab.until(lambda: lab.events_of("inside", "SliceWaiting"), "there is one free card only")
        await lab.create("small", ONE)
        await lab.running("small")
        await lab.client.delete(PODS, "outside", "free", grace_seconds=0)
        await lab.running("inside")

    managed(scenario)


def test_a_gang_of_whole_cards_starts_as_a_whole(managed: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("other", TWO)
        await lab.running("other")
        for number in range(2):
            item = manifest(f"train-{number}", TWO)
            item["metadata"] |= {
                "labels": {"tessera.dev/gang": "train"},
                "annotations": {"tessera.dev/gang-size": "2"},
            }
            await lab.client.create(PODS.as_dicts(), item, "default")
        await lab.until(lambda: lab.events_of("train-1", "SliceWaiting"), "there is no room for both")
        assert [lab.phase(f"train-{number}") for number in range(2)] == ["Pending", "Pending"]
        await lab.delete("other")
        await lab.running("train-0", "train-1")

    managed(scenario)


def test_a_waiting_pod_is_told_its_position_and_when_it_starts(managed: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("holder", ALL, command="sleep 600", activeDeadlineSeconds=600)
        await lab.running("holder")
        await lab.create("next", ALL)
        await lab.until(lambda: told(lab, "next"), "it is told")
        assert (told(lab, "next").status, told(lab, "next").reason) == ("False", "Full")
        assert "by the deadlines of the pods before it" in told(lab, "next").message
        expected = parse_rfc3339(told(lab, "next").message.partition("tarts about ")[2][:16].replace(" ", "T") + ":00Z")
        await lab.running("next")
        assert abs(lab.clock.now() - expected) < 60
        await lab.until(lambda: told(lab, "next").status == "True", "it is told that its wait is over")

    managed(scenario)


def told(lab: VirtualLab, name: str) -> Any:
    """The condition of a pod about its start; None before it is written."""
    pod = lab.pod(name)
    conditions = () if pod is None else pod.status.conditions
    return next((each for each in conditions if each.type == SLICE_PROMISED_CONDITION), None)


def test_shares_are_placed_in_the_same_order(managed: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        profile = (
            "version: v1\nsharing: {timeSlicing: {renameByDefault: true, "
            "resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
        )
        await lab.config_map("sharing-profiles", {"halves": profile})
        await lab.label("node-1", profile="halves")
        await lab.becomes({"nvidia.com/gpu.shared": 8})
        share = {"nvidia.com/gpu.shared": 1}
        for number in range(8):
            await lab.create(f"p{number}", share)
            await lab.running(f"p{number}")
        await lab.create("ninth", share)
        await lab.until(lambda: lab.events_of("ninth", "SliceWaiting"), "all shares are taken")
        assert lab.gates("ninth")
        await lab.delete("p3")
        await lab.running("ninth")

    managed(scenario)


def test_several_cards_go_to_the_node_whose_free_cards_are_joined(managed: InLab) -> None:
    """Nodes of L40S: cards 0 and 1 meet at one switch, 2 and 3 at another."""

    async def scenario(lab: VirtualLab) -> None:
        def free(node: str) -> tuple[int, ...]:
            links = decode_links(lab.existing_node(node).metadata.annotations.get(LINKS_ANNOTATION, ""))
            assert links is not None
            assert links.free is not None
            return links.free

        await lab.becomes({"nvidia.com/gpu": 4}, "node-2")
        await lab.client.merge_patch(NODES, "node-1", {"metadata": {"labels": {"example.com/part": "a"}}})
        for name in ("a", "b", "c"):
            await lab.create(name, ONE, nodeSelector={"example.com/part": "a"})
            await lab.running(name)
        await lab.delete("b")
        await lab.until(lambda: free("node-1") == (1, 3), "the agent has told that two cards are free, and far apart")
        for name, node, left in (("first", "node-2", (2, 3)), ("second", "node-2", ()), ("third", "node-1", ())):
            await lab.create(name, TWO)
            await lab.running(name)
            assert lab.existing_pod(name).spec.node_name == node
            await lab.until(lambda at=node, left=left: free(at) == left, "the agent has told")

    managed(scenario, "4xL40S,4xL40S")
