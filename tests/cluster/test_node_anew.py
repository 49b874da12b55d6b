"""A Node object is deleted while its machine reboots, and kubelet registers it anew under the same name."""

import pytest
from tests.cluster.test_agent_lost import Failing
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.resources import NODES

MIG = "nvidia.com/mig-3g.20gb"


@pytest.mark.parametrize("agent", ["lives", "dies first"])
def test_a_node_that_comes_again_under_its_name_serves_new_pods(in_lab: InLab, agent: str) -> None:
    failing = Failing()

    async def scenario(lab: VirtualLab) -> None:
        await lab.create("before", {MIG: 1})
        await lab.running("before")
        uid = lab.existing_node("node-1").metadata.uid
        if agent == "dies first":
            failing.turn("node-1")
        await lab.client.delete(NODES, "node-1")
        lab.cluster.nodes["node-1"].reboot()
        await lab.until(
            lambda: (node := lab.nodes.cache.get("node-1")) is not None and node.metadata.uid != uid,
            "it is back",
            600.0,
        )
        failing.turn("")
        await lab.join("node-1")
        await lab.create("after", {"nvidia.com/mig-2g.10gb": 1})
        await lab.until(lambda: lab.ready("after"), "a new pod runs there", 900.0)
        held = [(gpu, start) for gpu, _, start in lab.hardware()]
        assert len(held) == len(set(held))
        for name in ("before", "after"):
            if lab.pod(name) is not None:
                await lab.delete(name)
        await lab.empty()
        await lab.until(lambda: not lab.hardware(), "nothing is left on the card")

    in_lab(scenario, nodes="1xA100-40GB", cluster_type=failing.cluster)
