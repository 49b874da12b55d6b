"""Nodes that are labelled for what they do not have: cards, or MIG."""

from typing import Any

from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.names import MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL
from tessera.kube.resources import NODES, PODS


def conditions(node: Any) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.message) for each in node.status.conditions}


def test_an_agent_on_a_node_without_cards_waits_for_a_driver_and_does_not_crash(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.merge_patch(NODES, "node-1", {"metadata": {"labels": {MIG_CONFIG_LABEL: "dynamic"}}})
        await lab.until(
            lambda: "GpuNodeReady" in conditions(lab.nodes.cache.get("node-1")), "the agent has told of the node"
        )
        await lab.clock.sleep(300)
        status, message = conditions(lab.nodes.cache.get("node-1"))["GpuNodeReady"]
        assert status == "False"
        for fact in ("no driver is loaded on this node", "node node-1 of the lab was started without cards"):
            assert fact in message
        pods = (await lab.client.list(PODS)).items
        agents = [each for each in pods if each.metadata.name.startswith("tessera-agent")]
        assert len(agents) == 2
        assert all(each.status.container_statuses[0].restart_count == 0 for each in agents)

    in_lab(scenario, nodes="0,A100-40GB")


def test_a_label_for_mig_on_cards_without_it_is_refused_with_their_name(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for layout in ("dynamic", "all-1g.5gb"):
            await lab.client.merge_patch(NODES, "node-1", {"metadata": {"labels": {MIG_CONFIG_LABEL: layout}}})

            def told(layout: str = layout) -> bool:
                return layout in conditions(lab.nodes.cache.get("node-1")).get("GpuMigLayoutApplied", ("", ""))[1]

            await lab.until(told, "the agent has judged the layout")
            status, message = conditions(lab.nodes.cache.get("node-1"))["GpuMigLayoutApplied"]
            assert status == "False"
            assert "Tesla T4 has no MIG" in message
            assert lab.existing_node("node-1").metadata.labels[MIG_CONFIG_STATE_LABEL] == "failed"

    in_lab(scenario, nodes="2xT4", mig_config="")
