"""Gates of other operators come first: as long as one of them holds a pod, no slice is decided for it."""

from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.names import GATE
from tessera.kube.resources import CRDS, PODS

KUEUE = "kueue.x-k8s.io/admission"


def test_a_pod_behind_kueues_gate_costs_nothing_until_kueue_lets_it_go(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("queued", {"nvidia.com/mig-7g.40gb": 1}, schedulingGates=[{"name": KUEUE}])
        await lab.until(lambda: lab.pod("queued") is not None, "it is stored")
        assert [gate.name for gate in lab.existing_pod("queued").spec.scheduling_gates] == [KUEUE, GATE]
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


def test_a_pod_deleted_behind_both_gates_leaves_nothing(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("queued", {"nvidia.com/mig-1g.5gb": 1}, schedulingGates=[{"name": KUEUE}])
        await lab.until(lambda: lab.pod("queued") is not None, "it is stored")
        await lab.delete("queued")
        await lab.until(lambda: lab.pod("queued") is None, "it is gone")
        assert lab.instaslice().spec.pod_allocation_requests == {}
        assert lab.hardware() == []

    in_lab(scenario, nodes="1xA100-40GB")


KAI = "kai.scheduler/queue-admission"
#: The kind of KAI by which the cluster has it.
KAI_QUEUES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "queues.scheduling.run.ai"},
    "spec": {
        "group": "scheduling.run.ai",
        "scope": "Cluster",
        "names": {"kind": "Queue", "listKind": "QueueList", "plural": "queues", "singular": "queue"},
        "versions": [
            {
                "name": "v2",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


async def install_kai(lab: VirtualLab) -> None:
    """The cluster gets KAI's kind, and the controller sees it."""
    await lab.client.create(CRDS.as_dicts(), KAI_QUEUES)
    await lab.clock.sleep(700)


async def goes_first(lab: VirtualLab, name: str) -> None:
    """Waits until Tessera has gone before KAI: the pod has its slices, and KAI's gate is still there."""
    await lab.until(lambda: lab.gates(name) == [KAI], "Tessera has gone first")


def test_an_owner_that_goes_last_and_tessera_do_not_wait_for_each_other(in_lab: InLab) -> None:
    """KAI removes its gate only when it is the only one, so Tessera goes first and leaves it there."""

    async def scenario(lab: VirtualLab) -> None:
        async def kai(name: str) -> bool:
            """KAI's rule: looks at a pod once; True if it removed its gate."""
            pod = await lab.client.get(PODS, name, "default")
            if [gate.name for gate in pod.spec.scheduling_gates] != [KAI]:
                return False
            await lab.client.merge_patch(PODS, name, {"spec": {"schedulingGates": None}}, "default")
            return True

        await install_kai(lab)
        await lab.create("both", {"nvidia.com/mig-3g.20gb": 1}, schedulingGates=[{"name": KAI}])
        await goes_first(lab, "both")
        assert lab.existing_pod("both").spec.node_selector == {"kubernetes.io/hostname": "node-1"}
        assert lab.phase("both") == "Pending"
        assert len(lab.instaslice().spec.pod_allocation_requests) == 1
        assert await kai("both")
        await lab.running("both")

    in_lab(scenario, nodes="1xA100-40GB")


def test_tessera_goes_between_kueue_and_kai(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await install_kai(lab)
        gates = [{"name": KAI}, {"name": KUEUE}]
        await lab.create("all", {"nvidia.com/mig-3g.20gb": 1}, schedulingGates=gates)
        await lab.until(lambda: lab.pod("all") is not None, "it is stored")
        await lab.clock.sleep(30)
        assert lab.results() == {}
        rest = [{"name": KAI}, {"name": GATE}]
        await lab.client.merge_patch(PODS, "all", {"spec": {"schedulingGates": rest}}, "default")
        await goes_first(lab, "all")
        assert len(lab.instaslice().spec.pod_allocation_requests) == 1

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_gate_whose_owner_does_not_exist_promises_nothing(in_lab: InLab) -> None:
    """Any author of a pod may write the gate's name, and nobody would ever remove it."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.create("cheat", {"nvidia.com/mig-7g.40gb": 1}, schedulingGates=[{"name": KAI}])
        await lab.until(lambda: lab.pod("cheat") is not None, "it is stored")
        await lab.create("other", {"nvidia.com/mig-7g.40gb": 1})
        await lab.running("other")
        await lab.clock.sleep(600)
        assert lab.gates("cheat") == [KAI, GATE]
        assert len(lab.instaslice().spec.pod_allocation_requests) == 1

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_promise_that_a_later_gate_holds_for_minutes_is_taken_back(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await install_kai(lab)
        await lab.create("held", {"nvidia.com/mig-7g.40gb": 1}, schedulingGates=[{"name": KAI}])
        await goes_first(lab, "held")
        began = lab.clock.now()
        await lab.create("other", {"nvidia.com/mig-7g.40gb": 1}, command="sleep 600")
        await lab.running("other")
        assert 290 < lab.clock.now() - began < 320
        (told,) = lab.events_of("held", "SliceReclaimed")
        assert KAI in told.message
        await lab.clock.sleep(300)
        assert [each.count for each in lab.events_of("held", "SliceReclaimed")] == [1]

        await lab.client.merge_patch(PODS, "held", {"spec": {"schedulingGates": None}}, "default")
        await lab.until(lambda: lab.phase("other") == "Succeeded", "the other pod ends")
        await lab.running("held")

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_pod_that_a_later_gate_holds_passes_no_reservation(in_lab: InLab) -> None:
    """Its deadline begins nobody knows when."""

    async def scenario(lab: VirtualLab) -> None:
        await install_kai(lab)
        half = {"nvidia.com/mig-3g.20gb": 1}
        await lab.create("old", half, command="sleep 500", activeDeadlineSeconds=600)
        await lab.running("old")
        await lab.create("victim", {"nvidia.com/mig-7g.40gb": 1})
        await lab.until(lambda: lab.events_of("victim", "SliceReserved"), "slots are reserved")
        await lab.create("cheat", half, activeDeadlineSeconds=60, schedulingGates=[{"name": KAI}])
        await lab.create("honest", half, activeDeadlineSeconds=60)
        await lab.running("honest")
        assert lab.gates("cheat") == [KAI, GATE]
        await lab.running("victim")

    in_lab(scenario, nodes="1xA100-40GB")
