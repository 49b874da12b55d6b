"""An agent dies under pods: new pods go to the other node, and to this one again when it serves again."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.resources import REPLICASETS
from tessera_lab.cluster.cluster import SimulatedCluster
from tessera_lab.kubelet.context import ContainerContext, Entrypoint

MIG = "nvidia.com/mig-1g.5gb"


class Failing:
    """Kills the agent of one node, as often as kubelet starts it, until it is mended."""

    def __init__(self) -> None:
        self.node = ""
        self._changed = asyncio.Event()

    def turn(self, node: str) -> None:
        """From now on this node's agent dies; empty for none."""
        self.node = node
        self._changed.set()
        self._changed = asyncio.Event()

    def cluster(
        self, *arguments: Any, entrypoint: Callable[[SimulatedCluster], Entrypoint], **options: Any
    ) -> SimulatedCluster:
        """A cluster whose agents it may kill."""
        return SimulatedCluster(*arguments, entrypoint=lambda cluster: self._mortal(entrypoint(cluster)), **options)

    def _mortal(self, inner: Entrypoint) -> Entrypoint:
        async def run(context: ContainerContext) -> int:
            if context.argv[1] != "agent":
                return await inner(context)
            life = asyncio.ensure_future(inner(context))
            try:
                while self.node != context.host.name:
                    change = asyncio.ensure_future(self._changed.wait())
                    await asyncio.wait({life, change}, return_when=asyncio.FIRST_COMPLETED)
                    change.cancel()
                    if life.done():
                        return life.result()
            finally:
                life.cancel()
                await asyncio.wait({life})
            return 137

        return run


def homes(lab: VirtualLab, names: list[str]) -> set[str]:
    return {pod.spec.node_name for name in names if (pod := lab.pod(name)) is not None}


def test_six_new_pods_go_to_the_other_node_until_the_agent_is_back(in_lab: InLab) -> None:
    failing = Failing()

    async def scenario(lab: VirtualLab) -> None:
        await lab.create("first", {MIG: 1})
        await lab.running("first")
        home = lab.existing_pod("first").spec.node_name
        failing.turn(home)
        await lab.until(lambda: lab.gpus(home).get(MIG) is None, "kubelet counts no devices of the dead agent")
        names = [f"later-{number}" for number in range(6)]
        for name in names:
            await lab.create(name, {MIG: 1})
        await lab.running(*names)
        assert home not in homes(lab, names)
        await lab.create("large", {"nvidia.com/mig-3g.20gb": 1})
        await lab.until(lambda: lab.events_of("large", "SliceWaiting"), "there is no room elsewhere")
        failing.turn("")
        await lab.running("large")
        assert homes(lab, ["large"]) == {home}

    in_lab(scenario, nodes="A100-40GB,A100-40GB", cluster_type=failing.cluster)


def test_a_bound_pod_whose_agent_dies_before_it_starts_is_made_anew_elsewhere(in_lab: InLab) -> None:
    failing = Failing()

    async def scenario(lab: VirtualLab) -> None:
        limits = {"limits": {MIG: 1}}
        first = {"name": "first", "image": "busybox", "command": ["sleep", "60"]}
        main = {"name": "c0", "image": "busybox", "command": ["sleep", "infinity"], "resources": limits}
        settings = {"terminationGracePeriodSeconds": 1, "initContainers": [first], "containers": [main]}
        template = {"metadata": {"labels": {"app": "late"}}, "spec": settings}
        body = {
            "metadata": {"name": "late"},
            "spec": {"selector": {"matchLabels": {"app": "late"}}, "template": template},
        }
        await lab.client.create(REPLICASETS.as_dicts(), body, "default")

        def pods() -> list[Any]:
            return [pod for pod in lab.pods.cache.values() if pod.metadata.labels.get("app") == "late"]

        await lab.until(
            lambda: any(each.state and each.state.running for pod in pods() for each in pod.status.containers),
            "its init container runs",
        )
        (before,) = pods()
        failing.turn(before.spec.node_name)
        await lab.until(lambda: lab.ready_of("late"), "the owner's next pod runs", 600.0)
        after = lab.existing_pod(lab.ready_of("late"))
        assert after.metadata.uid != before.metadata.uid
        assert after.spec.node_name != before.spec.node_name
        assert lab.events_of(before.metadata.name, "SliceReclaimed")

    in_lab(scenario, nodes="A100-40GB,A100-40GB", cluster_type=failing.cluster)
