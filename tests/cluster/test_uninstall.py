"""Tessera is removed from a whole cluster: nothing stays behind, and running pods run on."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.driverlab import K1, VERSION, Drivers, node, precompiled
from tests.cluster.test_pod_notices import are_told, break_card
from tests.support.booted_lab import BootedLabs
from tests.support.device_claims import claim_template, claiming_pod, exactly
from tests.support.leftovers import Snapshot, differences, snapshot
from tests.support.mortal_transport import KilledError, TransportUntilWrite
from tests.support.virtual_lab import COMMANDS, InLab, VirtualLab

from tessera.api.names import DEVICE_API_DRA, DEVICE_API_LABEL, GATE, GPU_CONDITION, SLICE_CONDITION
from tessera.api.nodes.node_marks import DRIVER_SET_LABEL
from tessera.cli.install.apply import withdraw_removals
from tessera.cli.uninstall.nodes import Done, Left, Result, Unfinished
from tessera.cli.uninstall.removal import RemovalOptions, remove_all
from tessera.clock import LoopClock
from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera.dra.node_devices import DRIVER
from tessera.dra.resource_slices import RESOURCE_SLICES
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.client import Client
from tessera.kube.errors import Forbidden
from tessera.kube.resources import CONFIGMAPS, CRDS, DAEMONSETS, DEPLOYMENTS, NAMESPACES, NODES, PODS, Pod
from tessera.kube.resources.meta import resource_for
from tessera.nvml.interface import ComputeMode
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.installation.install import build_entrypoint, install_tessera

_READS = {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list", "watch"]}
#: A request for the largest slice of a card.
LARGE = exactly(
    "gpu",
    "mig.tessera.dev",
    selectors=[{"cel": {"expression": f"device.attributes['{DRIVER}'].profile == '7g.40gb'"}}],
)
#: Resources that kubelet may go on showing with 0.
ZERO = ': "0"'


class Removable(VirtualLab):
    """A lab that knows how it looked before Tessera came.

    Attributes:
        folder: all files of its nodes.
        bare: the cluster before the installation.
    """

    def __init__(self, cluster: SimulatedCluster, folder: Path, bare: Snapshot) -> None:
        super().__init__(cluster)
        self.folder = folder
        self.bare = bare

    async def uninstall(self, client: Any = None, **options: Any) -> list[Result]:
        """Runs the command's work; returns all that it says."""
        client = client or self.cluster.client("tessera-uninstall")
        return [each async for each in remove_all(client, self.clock, RemovalOptions(**options))]

    async def leftovers(self) -> list[str]:
        """What differs from the time before the installation; names of resources at 0 are kubelet's."""
        found = differences(self.bare, await snapshot(self.client, [self.folder]))
        return [each for each in found if not (each.startswith("+") and each.rstrip(",").endswith(ZERO))]

    def found(self, name: str) -> Pod:
        """A pod that is there."""
        pod = self.pod(name)
        assert pod is not None
        return pod

    async def is_bare(self) -> None:
        """Checks that nothing of Tessera is left."""
        left = await self.leftovers()
        assert not left, "\n".join(left)

    async def forget_policy(self) -> None:
        """The agents lose the right to write their Nodes, so they cannot answer."""
        role = resource_for({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {}})
        await self.client.merge_patch(role, "tessera-agent", {"rules": [_READS]})

    async def power_off(self, node: str) -> None:
        """Switches a machine off; the Node object says so, as the node life cycle controller would write it."""
        task = self.cluster._running.pop(node)
        task.cancel()
        await asyncio.wait([task])
        found = await self.client.get(NODES.as_dicts(), node)
        conditions = [
            {**each, "status": "Unknown"} if each["type"] == "Ready" else each for each in found["status"]["conditions"]
        ]
        await self.client.merge_patch(NODES, node, {"status": {"conditions": conditions}}, subresource="status")


def left_of(results: list[Result]) -> list[Left]:
    return [each for each in results if isinstance(each, Left)]


def notes_of(results: list[Result], node: str = "node-1") -> tuple[str, ...]:
    """What stays by design on a node."""
    return tuple(
        note for each in results if isinstance(each, Done) and each.name == f"node/{node}" for note in each.notes
    )


Scenario = Callable[[Removable], Awaitable[None]]


async def play(
    scenario: Scenario,
    folder: Path,
    nodes: str = "2*1xA100-40GB",
    cluster_type: Callable[..., SimulatedCluster] = SimulatedCluster,
    claim_driver: str = "",
    **options: Any,
) -> None:
    """Runs a scenario in a cluster in which Tessera was installed after a snapshot."""
    cluster = cluster_type(
        parse_nodes(nodes),
        clock=LoopClock(1_800_000_000),
        options=ClusterOptions(cdi=folder, **options),
        entrypoint=build_entrypoint(COMMANDS),
    )
    async with cluster.running():
        client = cluster.client("test")
        while len((await client.list(NODES)).items) < len(cluster.nodes):
            await cluster.clock.sleep(1)
        await cluster.clock.sleep(30)
        lab = Removable(cluster, folder, await snapshot(client, [folder]))
        await install_tessera(cluster.client("install"), claim_driver=claim_driver)
        async with lab.watched.running():
            with_cards = [name for name, node in cluster.nodes.items() if node.machine is not None]
            await lab.until(lambda: all(map(lab.offers, with_cards)), "every node has joined")
            await lab.until(lab.trusts_webhook, "the webhook is trusted")
            await scenario(lab)


@pytest.fixture
def removable(booted_labs: BootedLabs) -> Callable[..., None]:
    """Runs a scenario in such a cluster, which boots once for each kind."""

    def run(scenario: Scenario, **options: Any) -> None:
        booted_labs.run(("removable", *options.items()), partial(play, **options), scenario)

    return run


def test_an_unused_installation_leaves_nothing(removable: Callable[..., None]) -> None:
    async def scenario(lab: Removable) -> None:
        assert left_of(await lab.uninstall()) == []
        await lab.is_bare()
        assert await lab.uninstall() == [], "a second run has nothing to do"

    removable(scenario)


def test_running_pods_keep_their_slices_and_waiting_pods_are_told(removable: Callable[..., None]) -> None:
    async def scenario(lab: Removable) -> None:
        await lab.create("runs", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("runs")
        await lab.create("large", {"nvidia.com/mig-7g.40gb": 1})
        await lab.running("large")
        await lab.create("waits", {"nvidia.com/mig-7g.40gb": 1})
        await lab.until(lambda: lab.pod("waits") and gated(lab.pod("waits")), "it finds no room")
        hardware = {name: lab.hardware(name) for name in lab.cluster.nodes}
        before = {pod.metadata.name: pod.metadata.uid for pod in lab.pods.cache.values()}
        results = await lab.uninstall()
        assert left_of(results) == []
        assert {name: lab.hardware(name) for name in lab.cluster.nodes} == hardware
        assert {pod.metadata.name: pod.metadata.uid for pod in lab.pods.cache.values()} == before
        assert lab.ready("runs")
        home = lab.found("runs").spec.node_name
        assert any("3g.20gb at start" in note and "pod default/runs" in note for note in notes_of(results, home))
        pod = lab.found("waits")
        assert not gated(pod)
        assert [(each.status, each.reason) for each in pod.status.conditions if each.type == SLICE_CONDITION] == [
            ("False", "TesseraRemoved")
        ]
        assert lab.events_of("waits", "TesseraRemoved")
        assert lab.phase("waits") == "Pending"
        await lab.is_bare()

    removable(scenario)


@pytest.mark.parametrize("restarts", [False, True])
def test_pods_with_claims_are_waited_for_since_kubelet_could_not_end_them(
    removable: Callable[..., None], restarts: bool
) -> None:
    async def scenario(lab: Removable) -> None:
        for name in lab.cluster.nodes:
            await lab.client.merge_patch(NODES, name, {"metadata": {"labels": {DEVICE_API_LABEL: DEVICE_API_DRA}}})
        await lab.client.create(RESOURCE_CLAIM_TEMPLATES.as_dicts(), claim_template("whole", LARGE), "default")
        entry = {"name": "gpu", "resourceClaimTemplateName": "whole"}
        for name in ("a", "b", "waits"):
            await lab.client.create(PODS.as_dicts(), claiming_pod(name, entry), "default")
        await lab.until(lambda: lab.ready("a") and lab.ready("b"), "two have their devices", 120)
        hardware = {name: lab.hardware(name) for name in lab.cluster.nodes}
        with pytest.raises(Unfinished) as stopped:
            await lab.uninstall(timeout=60.0)
        reasons = [each.reason for each in stopped.value.left]
        assert len(reasons) == 2
        assert all("waits for the pods of ResourceClaims to end: default/" in each for each in reasons)
        assert {name: lab.hardware(name) for name in lab.cluster.nodes} == hardware
        assert lab.ready("a")
        assert lab.ready("b")
        if restarts:
            for pod in [each for each in lab.pods.cache.values() if each.metadata.name.startswith("tessera-agent")]:
                await lab.client.delete(PODS, pod.metadata.name, pod.metadata.namespace)
            await lab.clock.sleep(60)
        for name in ("a", "b"):
            await lab.client.delete(PODS, name, "default")
        await lab.until(lambda: not lab.pod("a") and not lab.pod("b"), "kubelet has ended them", 120.0)
        assert left_of(await lab.uninstall()) == []
        assert not gated(lab.found("waits"))
        (told,) = lab.events_of("waits", "TesseraRemoved")
        assert "nobody makes slices for this pod any more" in told.message
        await lab.client.delete(PODS, "waits", "default")
        await lab.clock.sleep(60)
        for each in (RESOURCE_SLICES, RESOURCE_CLAIMS, DEVICE_CLASSES):
            assert (await lab.client.list(each.as_dicts())).items == []
        assert not any(lab.hardware(name) for name in lab.cluster.nodes)

    removable(scenario, claim_driver=DRIVER, mig_config="dynamic")


def test_what_agents_said_of_a_pods_card_goes(removable: Callable[..., None]) -> None:
    async def scenario(lab: Removable) -> None:
        await lab.create("runs", {"nvidia.com/mig-7g.40gb": 1})
        await lab.running("runs")
        home = lab.found("runs").spec.node_name
        break_card(lab, node=home)
        await are_told(lab, ["runs"], seconds=60)
        others = [each for each in lab.found("runs").status.conditions if each.type != GPU_CONDITION]
        results = await lab.uninstall()
        assert "cleaned" in {
            each.result for each in results if isinstance(each, Done) and each.name == "pod/runs in default"
        }
        assert list(lab.found("runs").status.conditions) == others
        assert lab.ready("runs")

    removable(scenario)


def gated(pod: Any) -> bool:
    return any(each.name == GATE for each in pod.spec.scheduling_gates)


def test_gates_of_others_stay(removable: Callable[..., None]) -> None:
    async def scenario(lab: Removable) -> None:
        await lab.create("queued", {"nvidia.com/mig-1g.5gb": 1}, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
        await lab.until(lambda: lab.pod("queued"), "it is there")
        assert gated(lab.pod("queued"))
        await lab.uninstall()
        assert [each.name for each in lab.found("queued").spec.scheduling_gates] == ["kueue.x-k8s.io/admission"]

    removable(scenario)


def test_any_administrator_may_remove_gates_with_tessera(removable: Callable[..., None]) -> None:
    """The policy that keeps gates on pods goes first, since it knows no administrators but those of system:masters."""
    operators = UserInfo(name="someone", groups=("operators", "system:authenticated"))
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "operators"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "operators"}],
    }

    async def scenario(lab: Removable) -> None:
        await lab.client.create(resource_for(binding), binding)
        client = lab.cluster.client("tessera-uninstall", operators)
        await lab.create("waits", {"nvidia.com/mig-7g.40gb": 1}, nodeSelector={"no": "node"})
        await lab.until(lambda: lab.events_of("waits", "SliceWaiting"), "it waits")
        with pytest.raises(Forbidden, match="only Tessera's controller removes"):
            await client.merge_patch(PODS, "waits", {"spec": {"schedulingGates": None}}, "default")
        assert not left_of(await lab.uninstall(client))
        assert not gated(lab.found("waits"))

    removable(scenario)


@pytest.mark.parametrize(
    "applied",
    [pytest.param(False, id="request-lost", marks=pytest.mark.soak), pytest.param(True, id="answer-lost")],
)
def test_it_may_be_interrupted_at_every_write(removable: Callable[..., None], applied: bool) -> None:
    """Each run of the command makes one write and dies at the next, until a run finds nothing to do."""

    async def scenario(lab: Removable) -> None:
        await lab.create("runs", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("runs")
        await lab.create("large", {"nvidia.com/mig-7g.40gb": 1})
        await lab.running("large")
        await lab.create("waits", {"nvidia.com/mig-7g.40gb": 1})
        await lab.until(lambda: any(gated(each) for each in lab.pods.cache.values()), "one finds no room")
        runs, hardware = 0, lab.hardware(lab.found("runs").spec.node_name)
        while True:
            runs += 1
            transport = TransportUntilWrite(
                lab.cluster.client("tessera-uninstall")._transport, last=0 if applied else 1, applied=applied
            )
            client = Client(transport, field_manager="tessera-uninstall", clock=lab.clock)
            if await ends(lab.uninstall(client)):
                break
            assert runs < 300
        assert runs > 30
        assert lab.hardware(lab.found("runs").spec.node_name) == hardware
        assert lab.ready("runs")
        assert not any(gated(each) for each in lab.pods.cache.values())
        await lab.is_bare()

    removable(scenario)


async def ends(work: Awaitable[object]) -> bool:
    """True if the work ends, false if it was killed; an informer reports that in a group."""
    ended = False
    try:
        await work
        ended = True
    except* KilledError:
        pass
    return ended


def test_a_node_that_is_down_is_named_and_the_rest_goes(removable: Callable[..., None]) -> None:
    async def scenario(lab: Removable) -> None:
        await lab.power_off("node-2")
        (left,) = left_of(await lab.uninstall())
        assert left.name == "node/node-2"
        assert "it is not ready" in left.reason
        assert "/var/lib/tessera" in left.reason
        found = await lab.leftovers()
        assert all(
            "node-2" in each or "file " in each or "nvidia.com/mig-" in each or "Ready" in each for each in found
        ), found
        assert not any("tessera.dev" in each for each in found if "file " not in each)

    removable(scenario)


@pytest.mark.parametrize("missing", ["tessera-controller", "tessera-webhook", "tessera-agent", "all"])
def test_it_works_without_one_of_its_own_processes(removable: Callable[..., None], missing: str) -> None:
    async def scenario(lab: Removable) -> None:
        for resource in (DEPLOYMENTS.as_dicts(), DAEMONSETS.as_dicts()):
            for each in (await lab.client.list(resource, "tessera-system")).items:
                if missing in {each["metadata"]["name"], "all"}:
                    await lab.client.delete(
                        resource, each["metadata"]["name"], "tessera-system", propagation="Background"
                    )
        await lab.clock.sleep(30)
        left = left_of(await lab.uninstall())
        await lab.clock.sleep(360)  # kubelet counts the devices of a plugin that went without a word for five minutes
        found = await lab.leftovers()
        if missing in {"tessera-agent", "all"}:
            assert [each.name for each in left] == ["node/node-1", "node/node-2"]
            assert all("its agent does not run" in each.reason for each in left)
            assert all(each.startswith("+file") for each in found), found
        else:
            assert (left, found) == ([], [])

    removable(scenario)


def test_an_agent_that_does_not_answer_stops_the_removal_until_it_is_forced(removable: Callable[..., None]) -> None:
    async def scenario(lab: Removable) -> None:
        await lab.forget_policy()
        with pytest.raises(Unfinished) as stopped:
            await lab.uninstall(timeout=30.0)
        assert {each.name for each in stopped.value.left} == {"node/node-1", "node/node-2"}
        assert "its agent does not answer" in stopped.value.left[0].reason
        assert (await lab.client.list(DAEMONSETS, "tessera-system")).items, "the agents stay"
        left = left_of(await lab.uninstall(timeout=30.0, force=True))
        assert {each.name for each in left} == {"node/node-1", "node/node-2"}
        assert all(each.startswith("+file") for each in await lab.leftovers())

    removable(scenario)


#: Seconds for which the agents of two versions run side by side on a node: the older one acts, the newer one waits.
SIDE_BY_SIDE = 60
#: Seconds from the beginning of an update to the removal: before the newer agents, beside them, at the handover.
MOMENTS = (0.0, 10.0, 59.5)
#: More of them around the handover.
MORE_MOMENTS = (57.0, 57.5, 58.0, 58.5, 59.0, 60.0, 61.0)


@pytest.mark.parametrize("moment", [*MOMENTS, *(pytest.param(each, marks=pytest.mark.soak) for each in MORE_MOMENTS)])
def test_an_update_of_agents_meanwhile_leaves_nothing_either(removable: Callable[..., None], moment: float) -> None:
    async def scenario(lab: Removable) -> None:
        await lab.create("runs", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("runs")
        again = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}
        patch = {"spec": {"template": again, "minReadySeconds": SIDE_BY_SIDE}}
        await lab.client.merge_patch(DAEMONSETS, "tessera-agent", patch, "tessera-system")
        await lab.clock.sleep(moment)
        assert left_of(await lab.uninstall()) == []
        assert lab.ready("runs")
        await lab.is_bare()

    removable(scenario)


def test_what_users_have_in_the_namespace_of_instaslices_stays(removable: Callable[..., None]) -> None:
    async def scenario(lab: Removable) -> None:
        pod = {"metadata": {"name": "mine"}, "spec": {"containers": [{"name": "c", "image": "busybox"}]}}
        await lab.client.create(PODS.as_dicts(), pod, "instaslice-system")
        results = await lab.uninstall()
        assert left_of(results) == []
        (kept,) = [each for each in results if isinstance(each, Done) and each.result == "kept"]
        assert (kept.name, kept.notes) == ("namespace/instaslice-system", ("it has Pod mine",))
        await lab.client.get(PODS, "mine", "instaslice-system")

    removable(scenario)


def test_a_namespace_that_is_being_deleted_is_not_looked_into(removable: Callable[..., None]) -> None:
    """An earlier run deleted it, and with it the Role by which the chart's Job may list there."""

    async def scenario(lab: Removable) -> None:
        held = {"metadata": {"name": "theirs", "finalizers": ["example.com/held"]}}
        await lab.client.create(CONFIGMAPS.as_dicts(), held, "instaslice-system")
        await lab.client.delete(NAMESPACES, "instaslice-system")
        results = await lab.uninstall()
        assert not [each for each in results if isinstance(each, Done) and each.result == "kept"]
        assert [each.name for each in left_of(results)] == ["namespace/instaslice-system"]
        await lab.client.merge_patch(CONFIGMAPS, "theirs", {"metadata": {"finalizers": None}}, "instaslice-system")
        assert left_of(await lab.uninstall()) == []

    removable(scenario)


LABELS = {"app.kubernetes.io/part-of": "tessera"}


def labelled(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": LABELS}, "data": {"a": "b"}}


async def config_maps(lab: Removable, namespace: str) -> set[str]:
    return {each.metadata.name for each in (await lab.client.list(CONFIGMAPS, namespace)).items}


def test_config_maps_of_others_that_bear_tesseras_label_stay(removable: Callable[..., None]) -> None:
    async def scenario(lab: Removable) -> None:
        for namespace in ("default", "instaslice-system"):
            await lab.cluster.client("argocd-controller").create(CONFIGMAPS.as_dicts(), labelled("theirs"), namespace)
        unlabelled = {**labelled("marked"), "metadata": {"name": "marked"}}
        await lab.cluster.client("kubectl-client-side-apply").create(CONFIGMAPS.as_dicts(), unlabelled, "default")
        label = {"metadata": {"labels": LABELS}}
        await lab.cluster.client("kubectl-label").merge_patch(CONFIGMAPS.as_dicts(), "marked", label, "default")
        results = await lab.uninstall()
        assert left_of(results) == []
        assert {"theirs", "marked"} <= await config_maps(lab, "default")
        assert "theirs" in await config_maps(lab, "instaslice-system")
        kept = {each.name: each.notes for each in results if isinstance(each, Done) and each.result == "kept"}
        assert kept["namespace/instaslice-system"] == ("it has ConfigMap theirs",)
        (note,) = kept["configmap/marked in default"]
        assert note.endswith("others made it; to remove it: kubectl delete configmap marked -n default")

    removable(scenario)


@pytest.mark.parametrize(
    "manager",
    [
        "kubectl-client-side-apply",
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("kubectl", "tessera-install")),
    ],
)
def test_config_maps_of_an_installation_go_whoever_applied_it(removable: Callable[..., None], manager: str) -> None:
    async def scenario(lab: Removable) -> None:
        client = lab.cluster.client(manager)
        if manager == "kubectl-client-side-apply":
            await client.create(CONFIGMAPS.as_dicts(), labelled("profiles"), "default")
        else:
            await client.apply(CONFIGMAPS.as_dicts(), "profiles", labelled("profiles"), "default")
        for dry in (True, False):
            assert Done("configmap/profiles in default", "deleted") in await lab.uninstall(dry=dry)
        await lab.is_bare()

    removable(scenario)


def test_keys_of_others_stay_in_a_config_map_of_the_installer(removable: Callable[..., None]) -> None:
    async def scenario(lab: Removable) -> None:
        installer = lab.cluster.client("tessera-install")
        await installer.apply(CONFIGMAPS.as_dicts(), "profiles", labelled("profiles"), "default")
        notes = {"data": {"notes": "keep"}}
        await lab.cluster.client("editor").merge_patch(CONFIGMAPS.as_dicts(), "profiles", notes, "default")
        await lab.uninstall()
        found = await lab.client.get(CONFIGMAPS, "profiles", "default")
        assert (found.data, found.metadata.labels) == ({"notes": "keep"}, {})

    removable(scenario)


def test_a_dry_run_changes_nothing_and_names_all(removable: Callable[..., None]) -> None:
    async def scenario(lab: Removable) -> None:
        await lab.clock.sleep(60)
        before = await snapshot(lab.client, [lab.folder])
        results = await lab.uninstall(dry=True)
        assert differences(before, await snapshot(lab.client, [lab.folder])) == []
        wanted = {each.name for each in await lab.uninstall() if isinstance(each, Done)}
        assert {each.name for each in results} == wanted
        deleted = [each.name for each in results if isinstance(each, Done) and each.result == "deleted"]
        assert sorted(set(deleted)) == sorted(deleted)

    removable(scenario)


def test_kept_slices_and_kept_definitions(removable: Callable[..., None]) -> None:
    async def scenario(lab: Removable) -> None:
        await lab.uninstall(keep_crds=True, keep_slices=True)
        assert len((await lab.client.list(CRDS)).items) == 4
        namespaces = {each.metadata.name for each in (await lab.client.list(NAMESPACES)).items}
        assert "tessera-system" not in namespaces

    removable(scenario)


KEPT = "kept-slices.json"


def files_of(lab: Removable, node: str) -> list[str]:
    return sorted(each.name for each in (lab.folder / f"{node}-state").iterdir())


def test_kept_slices_of_running_pods_are_theirs_again_after_the_next_installation(
    removable: Callable[..., None],
) -> None:
    async def scenario(lab: Removable) -> None:
        await lab.create("runs", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("runs")
        hardware = lab.hardware("node-1")
        results = await lab.uninstall(keep_slices=True)
        assert any(KEPT in note for note in notes_of(results))
        assert files_of(lab, "node-1") == [KEPT]
        await come_back(lab)
        await lab.until(lambda: lab.settled("runs"), "its slice is recorded")
        assert lab.hardware("node-1") == hardware
        assert KEPT not in files_of(lab, "node-1")
        await lab.delete("runs")
        await lab.until(lambda: lab.hardware("node-1") == [], "the slice goes with its pod")
        await lab.uninstall(keep_slices=True)
        assert files_of(lab, "node-1") == [], "no pod, no file"

    removable(scenario, nodes="1xA100-40GB")


def test_an_instance_in_the_place_of_a_kept_slice_is_left_alone(removable: Callable[..., None]) -> None:
    """The pod ended while Tessera was away, and somebody cut the card anew."""

    async def scenario(lab: Removable) -> None:
        await lab.create("runs", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("runs")
        await lab.uninstall(keep_slices=True)
        await lab.delete("runs")
        hardware = lab.hardware("node-1")
        assert len(hardware) == 1
        await come_back(lab)
        await lab.create("next", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("next")
        await lab.clock.sleep(120)
        assert hardware[0] in lab.hardware("node-1")
        assert len(lab.instaslice().status.node_resources.foreign) == 1

    removable(scenario, nodes="1xA100-40GB")


async def come_back(lab: Removable) -> None:
    await install_tessera(lab.client)
    await lab.until(lambda: all(map(lab.offers, lab.cluster.nodes)), "every node has joined again")
    await lab.until(lab.trusts_webhook, "the webhook is trusted")


def test_tessera_can_be_installed_again(removable: Callable[..., None]) -> None:
    async def scenario(lab: Removable) -> None:
        await lab.uninstall()
        await install_tessera(lab.client)
        await lab.until(lambda: all(map(lab.offers, lab.cluster.nodes)), "every node has joined again")
        await lab.until(lab.trusts_webhook, "the webhook is trusted")
        await lab.create("one", {"nvidia.com/mig-1g.5gb": 1})
        await lab.running("one")

    removable(scenario)


MPS = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"


def test_pods_of_a_managed_namespace_that_wait_are_left_to_the_scheduler(managed: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("runs", {"nvidia.com/gpu": 4})
        await lab.running("runs")
        await lab.create("waits", {"nvidia.com/gpu": 1})
        await lab.until(lambda: lab.pod("waits") and gated(lab.pod("waits")), "it finds no card")
        client = lab.cluster.client("tessera-uninstall")
        results = [each async for each in remove_all(client, lab.clock, RemovalOptions())]
        assert left_of(results) == []
        assert lab.ready("runs")
        assert not gated(lab.pod("waits"))
        (told,) = lab.events_of("waits", "TesseraRemoved")
        assert "kube-scheduler places this pod now" in told.message
        await lab.create("next", {"nvidia.com/gpu": 1})
        assert not gated(await client.get(PODS, "next", "default")), "the label of the namespace has no effect any more"

    managed(scenario)


def test_clients_of_an_mps_daemon_are_waited_for(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.config_map("sharing-profiles", {"mps-4": MPS})
        await lab.label("node-1", profile="mps-4")
        await lab.becomes({"nvidia.com/gpu": 4})
        await lab.create("client", {"nvidia.com/gpu": 1})
        await lab.running("client")
        client = lab.cluster.client("tessera-uninstall")
        machine = lab.machine()
        assert machine is not None
        (card,) = machine.uuids()
        with pytest.raises(Unfinished) as stopped:
            async for _ in remove_all(client, lab.clock, RemovalOptions(timeout=60.0)):
                pass
        assert "waits for clients of MPS daemons to end: default/client" in stopped.value.left[0].reason
        assert machine.compute_mode(card) is ComputeMode.EXCLUSIVE_PROCESS
        assert lab.ready("client")
        assert lab.gpus() == {}
        await lab.delete("client")
        results = [each async for each in remove_all(client, lab.clock, RemovalOptions())]
        assert left_of(results) == []
        assert machine.compute_mode(card) is ComputeMode.DEFAULT

    in_lab(scenario, nodes="1xA100-40GB", mig_config="")


def test_an_agent_that_waits_for_clients_returns_when_tessera_is_installed_again(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.config_map("sharing-profiles", {"mps-4": MPS})
        await lab.label("node-1", profile="mps-4")
        await lab.becomes({"nvidia.com/gpu": 4})
        await lab.create("client", {"nvidia.com/gpu": 1})
        await lab.running("client")
        client = lab.cluster.client("tessera-uninstall")
        with pytest.raises(Unfinished):
            async for _ in remove_all(client, lab.clock, RemovalOptions(timeout=0.0)):
                pass
        await install_tessera(lab.client)
        assert [each async for each in withdraw_removals(lab.client, dry=False)] == ["node-1"]
        await lab.becomes({"nvidia.com/gpu": 4})
        assert lab.ready("client")

    in_lab(scenario, nodes="1xA100-40GB", mig_config="")


def test_the_instances_of_a_layout_go_except_those_that_pods_have(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.becomes({"nvidia.com/mig-1g.5gb": 7})
        await lab.create("user", {"nvidia.com/mig-1g.5gb": 1})
        await lab.running("user")
        devices = lab.devices("user")
        client = lab.cluster.client("tessera-uninstall")
        results = [each async for each in remove_all(client, lab.clock, RemovalOptions())]
        assert left_of(results) == []
        assert lab.mig_uuids() == devices
        assert any("used by pod default/user" in note for note in notes_of(results))
        assert lab.ready("user")

    in_lab(scenario, nodes="1xA100-40GB", mig_config="all-1g.5gb")


def test_drivers_go_from_unused_nodes_and_from_the_others_when_their_pods_have_ended(
    with_drivers: Callable[..., None],
) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        await lab.served("a", "b")
        await lab.create("job", {"nvidia.com/gpu": 1})
        await lab.running("job")
        home = lab.existing_pod("job").spec.node_name
        other = "b" if home == "a" else "a"
        client = lab.cluster.client("tessera-uninstall")
        (left,) = left_of([each async for each in remove_all(client, lab.clock, RemovalOptions())])
        assert left.name == f"node/{home}"
        assert "keeps its driver while pods use its cards: default/job" in left.reason
        machines: dict[str, Any] = {name: node.machine for name, node in lab.cluster.nodes.items()}
        await lab.clock.sleep(120)
        assert (machines[home].loaded_driver, machines[other].loaded_driver) == (VERSION, None)
        assert lab.ready("job")
        await lab.delete("job")
        assert left_of([each async for each in remove_all(client, lab.clock, RemovalOptions())]) == []
        await lab.clock.sleep(120)
        assert machines[home].loaded_driver is None
        assert not (await lab.client.list(NODES, label_selector=DRIVER_SET_LABEL)).items
        assert [
            each.metadata.name for each in (await lab.client.list(NAMESPACES)).items if "tessera" in each.metadata.name
        ] == []
        policies = [each["metadata"]["name"] for each in (await lab.client.list(CLUSTER_POLICIES)).items]
        assert policies == ["cluster-policy"], "the administrator made it"

    with_drivers(scenario, [node("a"), node("b")], precompiled(K1))
