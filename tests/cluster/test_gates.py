"""Gates of other operators come first: as long as one of them holds a pod, no slice is decided for it."""

from collections.abc import Callable
from typing import Any

from tessera.api.names import GATE
from tessera.kube.resources import PODS

KUEUE = "kueue.x-k8s.io/admission"


def test_a_pod_behind_kueues_gate_costs_nothing_until_kueue_lets_it_go(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: Any) -> None:
        await lab.create("queued", {"nvidia.com/mig-7g.40gb": 1}, schedulingGates=[{"name": KUEUE}])
        await lab.until(lambda: lab.pod("queued") is not None, "it is stored")
        assert [gate.name for gate in lab.pod("queued").spec.scheduling_gates] == [KUEUE, GATE]
        await lab.create("other", {"nvidia.com/mig-7g.40gb": 1})
        await lab.running("other")
        assert lab.events_of("queued", "SliceWaiting") == []
        await lab.delete("other")
        await lab.empty()
        await lab.clock.sleep(300)
        assert lab.hardware() == []

        await lab.client.merge_patch(PODS, "queued", {"spec": {"schedulingGates": [{"name": GATE}]}}, "default")
        await lab.running("queued")
        assert len(lab.hardware()) == 1

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_pod_deleted_behind_both_gates_leaves_nothing(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: Any) -> None:
        await lab.create("queued", {"nvidia.com/mig-1g.5gb": 1}, schedulingGates=[{"name": KUEUE}])
        await lab.until(lambda: lab.pod("queued") is not None, "it is stored")
        await lab.delete("queued")
        await lab.until(lambda: lab.pod("queued") is None, "it is gone")
        assert lab.instaslice().spec.pod_allocation_requests == {}
        assert lab.hardware() == []

    in_lab(scenario, nodes="1xA100-40GB")


KAI = "kai.scheduler/queue-admission"


def test_an_owner_that_goes_last_and_tessera_do_not_wait_for_each_other(in_lab: Callable[..., None]) -> None:
    """KAI removes its gate only when it is the only one, so Tessera goes first and leaves it there."""

    async def scenario(lab: Any) -> None:
        async def kai(name: str) -> bool:
            """KAI's rule: looks at a pod once; True if it removed its gate."""
            pod = await lab.client.get(PODS, name, "default")
            if [gate.name for gate in pod.spec.scheduling_gates] != [KAI]:
                return False
            await lab.client.merge_patch(PODS, name, {"spec": {"schedulingGates": None}}, "default")
            return True

        await lab.create("both", {"nvidia.com/mig-3g.20gb": 1}, schedulingGates=[{"name": KAI}])
        await lab.until(
            lambda: (
                [gate.name for gate in lab.pod("both").spec.scheduling_gates] == [KAI] if lab.pod("both") else False
            ),
            "Tessera has gone first, and KAI's gate is still there",
        )
        assert lab.pod("both").spec.node_selector == {"kubernetes.io/hostname": "node-1"}
        assert lab.phase("both") == "Pending"
        assert len(lab.instaslice().spec.pod_allocation_requests) == 1
        assert await kai("both")
        await lab.running("both")

    in_lab(scenario, nodes="1xA100-40GB")


def test_tessera_goes_between_kueue_and_kai(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: Any) -> None:
        gates = [{"name": KAI}, {"name": KUEUE}]
        await lab.create("all", {"nvidia.com/mig-3g.20gb": 1}, schedulingGates=gates)
        await lab.until(lambda: lab.pod("all") is not None, "it is stored")
        await lab.clock.sleep(30)
        assert lab.results() == {}
        rest = [{"name": KAI}, {"name": GATE}]
        await lab.client.merge_patch(PODS, "all", {"spec": {"schedulingGates": rest}}, "default")
        await lab.until(
            lambda: [gate.name for gate in lab.pod("all").spec.scheduling_gates] == [KAI],
            "Tessera has removed its own gate",
        )
        assert len(lab.instaslice().spec.pod_allocation_requests) == 1

    in_lab(scenario, nodes="1xA100-40GB")
