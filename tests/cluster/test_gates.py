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
