"""From NVIDIA's operator to Tessera and back, with the operator's labels, ClusterPolicy and DaemonSets in the cluster.

The operator is a stand-in that keeps two of its promises: it sets a missing label ``nvidia.com/gpu.deploy.*`` of a node
with cards to true and leaves a false one alone, and it has the DaemonSets that its ClusterPolicy turns on. Its device
plugin is the one of the lab's reference operator, which offers whole cards.
"""

import asyncio
import copy
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.mortal_transport import KilledError, TransportUntilWrite
from tests.support.virtual_lab import COMMANDS, VirtualLab

from tessera.cli.base.connection import CommandError
from tessera.cli.install.adoption import (
    DEPLOY_PREFIX,
    PARTS,
    STOPPED_KEY,
    read_policy,
    restore_patch,
    stop_others,
    stop_patch,
)
from tessera.cli.install.apply import AppliedObject, apply_all
from tessera.cli.uninstall.nodes import Left
from tessera.cli.uninstall.removal import RemovalOptions, remove_all
from tessera.clock import LoopClock
from tessera.doctor.manifests import deploy_folder, install_manifests
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.informer import InformerGroup
from tessera.kube.resources import CRDS, DAEMONSETS, NAMESPACES, NODES, PODS
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.installation.install import build_entrypoint
from tessera_lab.kubelet.images.catalogue import ImageCatalogue, SimulatedImage
from tessera_lab.reference_operator.operator import device_plugin_program
from tessera_lab.simulation.cost_model import CostModel
from tessera_lab.simulation.virtual_time import run_virtual

NAMESPACE = "gpu-operator"
PLUGIN = "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"
#: The image of each part that Tessera replaces; the driver stays.
IMAGES = {
    "device-plugin": PLUGIN,
    "gpu-feature-discovery": "nvcr.io/nvidia/gpu-feature-discovery:v0.17.0",
    "mig-manager": "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.12.0",
    "dcgm-exporter": "nvcr.io/nvidia/k8s/dcgm-exporter:4.0.0",
}
POLICY = {
    "metadata": {"name": "cluster-policy"},
    "spec": {"migManager": {"enabled": True}, "mig": {"strategy": "mixed"}},
}


def daemon_set(name: str, image: str, selector: Mapping[str, str]) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "main", "image": image, "command": ["run"]}
    pod = {"nodeSelector": dict(selector), "tolerations": [{"operator": "Exists"}], "containers": [container]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template}}


class NvidiaLab(VirtualLab):
    """A lab with NVIDIA's operator."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(cluster)
        self.operator = cluster.client("gpu-operator")
        # Tessera's kinds do not exist yet.
        self.watched = InformerGroup(self.pods, self.events, self.nodes)

    async def bring_operator(self, *, state: str = "success", **labels: str) -> None:
        """Installs the operator's objects; all nodes have cards, and these labels."""
        crd = yaml.safe_load((deploy_folder() / "crds" / "clusterpolicies.yaml").read_text(encoding="utf-8"))
        crd["metadata"].pop("labels")
        await self.operator.create(CRDS.as_dicts(), crd)
        await self.operator.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await self.clock.sleep(1)
        await self.operator.create(CLUSTER_POLICIES, copy.deepcopy(POLICY))
        shown = {"nvidia.com/gpu.present": "true", "nvidia.com/mig.config.state": state, **labels}
        for name in self.cluster.nodes:
            await self.operator.merge_patch(NODES, name, {"metadata": {"labels": shown}})

    async def reconcile(self) -> None:
        """The operator's loop."""
        while True:
            for node in (await self.operator.list(NODES)).items:
                missing = {DEPLOY_PREFIX + part: "true" for part in (*IMAGES, "driver")}
                missing = {key: value for key, value in missing.items() if key not in node.metadata.labels}
                if missing:
                    await self.operator.merge_patch(NODES, node.metadata.name, {"metadata": {"labels": missing}})
            policy = await self.operator.get(CLUSTER_POLICIES, "cluster-policy")
            for part, image in IMAGES.items():
                enabled = (policy["spec"].get(PARTS.get(part, part)) or {}).get("enabled") is not False
                name = f"nvidia-{part}"
                try:
                    await self.operator.get(DAEMONSETS, name, NAMESPACE)
                    if not enabled:
                        await self.operator.delete(DAEMONSETS, name, NAMESPACE, propagation="Background")
                except NotFound:
                    if enabled:
                        made = daemon_set(name, image, {DEPLOY_PREFIX + part: "true"})
                        await self.operator.create(DAEMONSETS.as_dicts(), made, NAMESPACE)
            await self.clock.sleep(5)

    @asynccontextmanager
    async def operating(self) -> AsyncIterator[None]:
        """Runs the operator."""
        task = asyncio.create_task(self.reconcile())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def stop_nvidia(self, client: Client | None = None, *, dry: bool = False) -> list[AppliedObject]:
        """The first part of the command."""
        client = client or self.cluster.client("tessera-install")
        return [each async for each in stop_others(client, self.clock, dry=dry)]

    async def install(self) -> None:
        """The rest of the command."""
        client = self.cluster.client("tessera-install")
        assert {each.result async for each in apply_all(client, self.clock, install_manifests())} <= {"created", "left"}

    async def uninstall(self) -> None:
        """Removes Tessera; nothing is in the way."""
        client = self.cluster.client("tessera-uninstall")
        results = [each async for each in remove_all(client, self.clock, RemovalOptions(keep_slices=True))]
        assert not [each for each in results if isinstance(each, Left)]

    async def pods_of(self, namespace: str = NAMESPACE) -> dict[str, int]:
        """The number of pods of each DaemonSet."""
        found: dict[str, int] = {}
        for pod in (await self.client.list(PODS, namespace)).items:
            app = pod.metadata.labels["app"]
            found[app] = found.get(app, 0) + 1
        return found

    def deploy_labels(self, node: str = "node-1") -> dict[str, str]:
        seen = self.nodes.cache.get(node)
        assert seen is not None
        found = seen.metadata.labels.items()
        return {key.removeprefix(DEPLOY_PREFIX): value for key, value in found if key.startswith(DEPLOY_PREFIX)}


Scenario = Callable[[NvidiaLab], Awaitable[None]]


@pytest.fixture
def beside_nvidia(tmp_path: Path) -> Callable[..., None]:
    """Runs a scenario in a cluster without Tessera, whose device plugin is NVIDIA's."""

    def run(
        scenario: Scenario, nodes: str = "2*1xT4", before: Callable[[SimulatedCluster], None] | None = None
    ) -> None:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        images = ImageCatalogue({PLUGIN: SimulatedImage(program=device_plugin_program(CostModel()))})

        async def play() -> None:
            cluster = SimulatedCluster(
                parse_nodes(nodes),
                clock=LoopClock(1_800_000_000),
                options=ClusterOptions(cdi=folder, mig_config="", catalogue=images),
                entrypoint=build_entrypoint(COMMANDS),
            )
            if before is not None:
                before(cluster)
            async with cluster.running():
                lab = NvidiaLab(cluster)
                async with lab.watched.running():
                    await lab.until(lambda: all(lab.nodes.cache.get(name) for name in cluster.nodes), "nodes are there")
                    await scenario(lab)

        run_virtual(play())

    return run


ALL = {"nvidia-device-plugin": 2, "nvidia-gpu-feature-discovery": 2, "nvidia-mig-manager": 2, "nvidia-dcgm-exporter": 2}


def test_from_the_operator_to_tessera_and_back_under_a_running_pod(beside_nvidia: Callable[..., None]) -> None:
    async def scenario(lab: NvidiaLab) -> None:
        await lab.bring_operator()
        async with lab.operating():
            await lab.becomes({"nvidia.com/gpu": 1})
            await lab.create("runs", {"nvidia.com/gpu": 1})
            await lab.running("runs")
            uid, devices = lab.pod("runs").metadata.uid, lab.devices("runs")  # type: ignore[union-attr]
            assert await lab.pods_of() == ALL
            policy = await lab.client.get(CLUSTER_POLICIES, "cluster-policy")

            await lab.stop_nvidia()
            assert {key for key, value in lab.deploy_labels().items() if value == "false"} == set(PARTS)
            assert await lab.pods_of() == {"nvidia-dcgm-exporter": 2}
            await lab.install()
            await lab.until(lambda: all(map(lab.tells, lab.cluster.nodes)), "the agents serve")
            await lab.becomes({"nvidia.com/gpu": 1})
            await lab.clock.sleep(120)
            assert lab.pod("runs").metadata.uid == uid  # type: ignore[union-attr]
            assert lab.devices("runs") == devices
            assert await lab.pods_of() == {"nvidia-dcgm-exporter": 2}, "the operator respects it"

            await lab.uninstall()
            await lab.clock.sleep(30)
            assert await lab.pods_of() == ALL
            await lab.becomes({"nvidia.com/gpu": 1})
            assert set(lab.deploy_labels().values()) == {"true"}
            after = await lab.client.get(CLUSTER_POLICIES, "cluster-policy")
            assert (after["spec"], after["metadata"].get("annotations") or None) == (policy["spec"], None)
            assert lab.ready("runs")
            assert lab.pod("runs").metadata.uid == uid  # type: ignore[union-attr]

    beside_nvidia(scenario)


def test_a_node_that_a_label_kept_free_of_agents_before_stays_so(beside_nvidia: Callable[..., None]) -> None:
    """An adoption stops the same part by the same label, and the agents come all the same."""

    async def scenario(lab: NvidiaLab) -> None:
        await lab.bring_operator(**{f"{DEPLOY_PREFIX}device-plugin": "false"})
        async with lab.operating():
            await lab.clock.sleep(30)
            await lab.stop_nvidia()
            assert lab.deploy_labels()["gpu-feature-discovery"] == "true"
            await lab.install()
            await lab.clock.sleep(120)
            pods = (await lab.client.list(PODS, "tessera-system")).items
            assert not [pod.metadata.name for pod in pods if pod.metadata.name.startswith("tessera-agent")]

    beside_nvidia(scenario)


def cut(cluster: SimulatedCluster) -> None:
    """NVIDIA's MIG manager has cut the cards into seven."""
    for node in cluster.nodes.values():
        assert node.machine is not None
        (gpu,) = node.machine.uuids()
        node.machine.set_mig_mode(gpu, True)
        for start in range(7):
            made = node.machine.create_gpu_instance(gpu, "1g.5gb", start)
            node.machine.create_compute_instance(gpu, made, 0)


@pytest.mark.parametrize("labelled", [True, False], ids=["layout", "by-hand"])
def test_instances_stay_with_and_without_a_layout(beside_nvidia: Callable[..., None], labelled: bool) -> None:
    async def scenario(lab: NvidiaLab) -> None:
        await lab.bring_operator(**({"nvidia.com/mig.config": "all-1g.5gb"} if labelled else {}))
        async with lab.operating():
            before = lab.mig_uuids()
            assert len(before) == 7
            await lab.stop_nvidia()
            await lab.install()
            await lab.becomes({"nvidia.com/mig-1g.5gb": 7})
            await lab.clock.sleep(120)
            assert lab.mig_uuids() == before
            await lab.uninstall()
            assert lab.mig_uuids() == before

    beside_nvidia(scenario, nodes="1xA100-40GB", before=cut)


@pytest.mark.parametrize("applied", [False, True], ids=["request-lost", "answer-lost"])
def test_it_may_be_interrupted_at_every_write(beside_nvidia: Callable[..., None], applied: bool) -> None:
    async def scenario(lab: NvidiaLab) -> None:
        await lab.bring_operator()
        async with lab.operating():
            await lab.becomes({"nvidia.com/gpu": 1})
            await lab.clock.sleep(30)
            before = (await lab.client.get(CLUSTER_POLICIES, "cluster-policy"))["spec"]
            runs = 0
            while True:
                runs += 1
                inner = lab.cluster.client("tessera-install")._transport
                transport = TransportUntilWrite(inner, last=0 if applied else 1, applied=applied)
                assert runs < 30
                with suppress(KilledError):
                    await lab.stop_nvidia(Client(transport, field_manager="tessera-install", clock=lab.clock))
                    break
            assert runs == 7 + (1 if applied else 0)
            assert await lab.pods_of() == {"nvidia-dcgm-exporter": 2}
            await lab.uninstall()
            assert (await lab.client.get(CLUSTER_POLICIES, "cluster-policy"))["spec"] == before

    beside_nvidia(scenario)


@pytest.mark.parametrize("labels", [{"state": "pending"}, {"nvidia.com/gpu.deploy.dcgm": "paused-for-mig-change"}])
def test_a_node_in_the_middle_of_a_change_is_left_alone(
    beside_nvidia: Callable[..., None], labels: dict[str, str]
) -> None:
    async def scenario(lab: NvidiaLab) -> None:
        await lab.bring_operator(**labels)
        with pytest.raises(CommandError, match=r"changes node-1, node-2 now; nothing was changed"):
            await lab.stop_nvidia()

    beside_nvidia(scenario)


def test_a_dry_run_names_the_changes_and_makes_none(beside_nvidia: Callable[..., None]) -> None:
    async def scenario(lab: NvidiaLab) -> None:
        await lab.bring_operator()
        async with lab.operating():
            await lab.becomes({"nvidia.com/gpu": 1})
            names = [each.name for each in await lab.stop_nvidia(dry=True)]
            assert names[:2] == [f"label {DEPLOY_PREFIX}mig-manager=false of node/node-{number}" for number in (1, 2)]
            assert names[-1] == "clusterpolicy.nvidia.com/cluster-policy"
            assert await lab.pods_of() == ALL
            assert "mixed" in await read_policy(lab.client)

    beside_nvidia(scenario)


def test_a_device_plugin_without_an_operator_stops_and_returns(beside_nvidia: Callable[..., None]) -> None:
    async def scenario(lab: NvidiaLab) -> None:
        made = daemon_set("nvdp", PLUGIN, {})
        await lab.client.create(DAEMONSETS.as_dicts(), made, "kube-system")
        await lab.becomes({"nvidia.com/gpu": 1})
        (stopped,) = await lab.stop_nvidia()
        assert stopped.name == "daemonset.apps/nvdp in kube-system"
        assert await lab.stop_nvidia() == [], "a second run has nothing to do"
        await lab.uninstall()
        found = await lab.client.get(DAEMONSETS.as_dicts(), "nvdp", "kube-system")
        assert STOPPED_KEY not in (found["spec"]["template"]["spec"].get("nodeSelector") or {})
        await lab.becomes({"nvidia.com/gpu": 1})

    beside_nvidia(scenario)


@pytest.mark.parametrize(
    ("spec", "stopped", "restored"),
    [
        ({}, {"migManager", "gfd", "devicePlugin"}, dict.fromkeys(("migManager", "gfd", "devicePlugin"))),
        ({"gfd": {"enabled": False}, "migManager": {"enabled": True}}, {"migManager", "devicePlugin"}, None),
        ({key: {"enabled": False} for key in PARTS.values()}, set(), None),
    ],
)
def test_the_policy_gets_its_former_values_back(
    spec: dict[str, Any], stopped: set[str], restored: dict[str, Any] | None
) -> None:
    policy: dict[str, Any] = {"metadata": {"name": "p"}, "spec": spec}
    patch = stop_patch(policy)
    assert set(patch.get("spec", {})) == stopped
    if not stopped:
        return
    changed = {"metadata": patch["metadata"], "spec": {**spec, **patch["spec"]}}
    assert stop_patch(changed) == {}
    back = restore_patch(changed)["spec"]
    assert back == (restored if restored is not None else {"migManager": {"enabled": True}, "devicePlugin": None})
