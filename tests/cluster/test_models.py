"""Cards of several models on one node, and in one cluster: each pod gets a card that can make what it asks for."""

from tests.support.virtual_lab import InLab, VirtualLab


def models_in_use(lab: VirtualLab, node: str) -> dict[str, str]:
    """The model on which each profile now stands."""
    names = {card.uuid: card.name for card in lab.machine(node).devices()}
    return {profile: names[gpu] for gpu, profile, _ in lab.hardware(node)}


def test_one_node_with_two_models_serves_both(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("big", {"nvidia.com/mig-3g.71gb": 1})
        await lab.create("small", {"nvidia.com/mig-2g.12gb": 1})
        await lab.running("big", "small")
        assert models_in_use(lab, "node-1") == {"3g.71gb": "NVIDIA H200", "2g.12gb": "NVIDIA A30"}
        for name in ("big", "small"):
            await lab.delete(name)
        await lab.empty()
        assert lab.hardware() == []

    in_lab(scenario, nodes="2xA30+1xH200")


def test_slices_of_one_pod_may_stand_on_cards_of_two_models(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("both", {"nvidia.com/mig-4g.24gb": 1, "nvidia.com/mig-7g.141gb": 1})
        await lab.running("both")
        assert models_in_use(lab, "node-1") == {"4g.24gb": "NVIDIA A30", "7g.141gb": "NVIDIA H200"}
        assert len(set(lab.devices("both"))) == 2

    in_lab(scenario, nodes="1xA30+1xH200")


def test_nodes_of_different_models_each_take_their_own(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("a", {"nvidia.com/mig-3g.20gb": 1})
        await lab.create("h", {"nvidia.com/mig-3g.40gb": 1})
        await lab.running("a", "h")
        assert lab.existing_pod("a").spec.node_name == "node-1"
        assert lab.existing_pod("h").spec.node_name == "node-2"

    in_lab(scenario, nodes="1xA100-40GB,1xH100-80GB")
