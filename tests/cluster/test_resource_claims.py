"""ResourceClaims in a whole cluster: installed with --claim-driver, placed by the controller, prepared by agents."""

import random
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.booted_lab import BootedLabs
from tests.support.device_claims import claim, claim_template, claiming_pod, exactly, resource_slice
from tests.support.virtual_lab import COMMANDS, VirtualLab

from tessera.api.names import DEVICE_API_DRA, DEVICE_API_LABEL, REPAIRS_KEY, REPAIRS_MAP
from tessera.api.nodes.usage import NodeUsage
from tessera.cli.install.manifests import AGENT, InstallChoices, manifests
from tessera.clock import LoopClock
from tessera.doctor.manifests import deploy_folder, install_manifests, read_manifests
from tessera.dra.claims import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera.dra.driver_objects import is_ours
from tessera.dra.node_devices import DRIVER, NVIDIA_DRIVER
from tessera.dra.resource_slices import RESOURCE_SLICES
from tessera.kube.informer import Informer, InformerGroup
from tessera.kube.resources import CONFIGMAPS, DAEMONSETS, EVENTS, NODES, PODS
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.installation.install import apply_manifests, build_entrypoint
from tessera_lab.simulation.virtual_time import run_virtual

NS = "tessera-system"
Scenario = Callable[[VirtualLab], Awaitable[Any]]
#: Nodes that several tests have; see :mod:`tests.support.booted_lab`.
COMMON = {"1xA100-40GB", "1xA100-40GB,1xA100-40GB", "1xT4", "2xT4"}


def profile(name: str, driver: str = DRIVER, request: str = "r0", **fields: Any) -> dict[str, Any]:
    """A request for a device of one profile."""
    expression = f"device.attributes['{driver}'].profile == '{name}'"
    return exactly(request, f"mig.{driver.removeprefix('gpu.')}", expression, **fields)


async def template(lab: VirtualLab, name: str, *requests: dict[str, Any]) -> None:
    """A template of claims with these requests."""
    await lab.client.create(RESOURCE_CLAIM_TEMPLATES.as_dicts(), claim_template(name, *requests), "default")


async def claiming(lab: VirtualLab, name: str, of: str, *, shared: bool = False) -> None:
    """A pod with a claim of a template, or with the claim of that name."""
    source = "resourceClaimName" if shared else "resourceClaimTemplateName"
    body = claiming_pod(name, {"name": "gpu", source: of}, restartPolicy="Never", terminationGracePeriodSeconds=0)
    await lab.client.create(PODS.as_dicts(), body, "default")


async def play(
    scenario: Scenario,
    nodes: str,
    folder: Path,
    driver: str,
    *,
    placement: str = "controller",
    memory_limits: str = "",
    cluster_type: Callable[..., SimulatedCluster] = SimulatedCluster,
    **options: Any,
) -> Any:
    """Installs Tessera with the driver, and returns what the scenario does; all nodes give their slices to claims.

    ``options`` are the cluster's.
    """
    cluster = cluster_type(
        parse_nodes(nodes),
        clock=LoopClock(1_800_000_000),
        options=ClusterOptions(cdi=folder, mig_config="dynamic", **options),
        entrypoint=build_entrypoint(COMMANDS),
    )
    choices = InstallChoices(claim_driver=driver, claim_placement=placement, memory_limits=memory_limits)
    async with cluster.running():
        client = cluster.client("install")
        wanted = manifests(
            install_manifests(), (), choices, claims=read_manifests(deploy_folder() / "options/claims.yaml")
        )
        await apply_manifests(client, wanted)
        lab = VirtualLab(cluster)
        published = Informer(lab.client, RESOURCE_SLICES, clock=lab.clock, rng=random.Random(0))
        async with lab.watched.running(), InformerGroup(published).running():
            await lab.until(lambda: len(lab.nodes.cache) == len(cluster.nodes), "all nodes are registered")
            for name in cluster.nodes:
                await client.merge_patch(NODES, name, {"metadata": {"labels": {DEVICE_API_LABEL: DEVICE_API_DRA}}})
            while {each.spec.node_name for each in published.cache.values()} != set(cluster.nodes):
                await lab.clock.sleep(1.0)
            return await scenario(lab)


@pytest.fixture
def in_lab(node_files: Path, booted_labs: BootedLabs) -> Callable[..., Any]:
    """Runs a scenario on virtual time, in a cluster that has just booted."""

    def run(
        scenario: Scenario,
        nodes: str = "1xA100-40GB",
        driver: str = DRIVER,
        *,
        placement: str = "controller",
        memory_limits: str = "",
        cluster_type: Callable[..., SimulatedCluster] = SimulatedCluster,
        **options: Any,
    ) -> Any:
        chosen: dict[str, Any] = {"placement": placement, "memory_limits": memory_limits, "cluster_type": cluster_type}

        def boot(scenario: Scenario, folder: Path) -> Coroutine[Any, Any, Any]:
            return play(scenario, nodes, folder, driver, **chosen, **options)

        if nodes in COMMON and driver == DRIVER and not options and not memory_limits:
            return booted_labs.run(("claims", nodes, placement, cluster_type), boot, scenario)
        with tempfile.TemporaryDirectory(dir=node_files) as folder:
            return run_virtual(boot(scenario, Path(folder)))

    return run


def test_a_claim_runs_from_its_template_to_the_container(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", profile("1g.5gb"))
        await claiming(lab, "p", "one")
        await lab.running("p")
        assert [each[1] for each in lab.hardware()] == ["1g.5gb"]
        (uuid,) = lab.devices("p", "main")
        assert uuid in lab.mig_uuids()
        assert lab.settled("p")
        told = [
            each for each in (await lab.client.list(EVENTS, "default")).items if "Claim" in each.involved_object.kind
        ]
        assert {each.reason for each in told} == {"ClaimAllocated", "ClaimPrepared"}
        assert all("mig-1g5gb" in each.message for each in told)
        await lab.delete("p")
        await lab.until(lambda: lab.pod("p") is None, "the pod is gone")
        await lab.empty()
        assert lab.hardware() == []
        assert (await lab.client.list(RESOURCE_CLAIMS, "default")).items == []

    in_lab(scenario)


def test_agents_publish_engines_brand_and_nvlinks(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        names = {"cut": "mig", "joined": "gpu"}
        selectors = {
            "cut": "device.capacity['gpu.tessera.dev'].decoders.isGreaterThan(quantity('0'))",
            "joined": "device.attributes['gpu.tessera.dev'].nvlinkGroup != ''",
        }
        for name, kind in names.items():
            brand = "device.attributes['gpu.tessera.dev'].brand == 'Nvidia'"
            request = exactly("r0", f"{kind}.tessera.dev", selectors[name], brand, count=1 + (kind == "gpu"))
            await template(lab, name, request)
            await claiming(lab, name, name)
            await lab.running(name)
        assert [each[1] for each in lab.hardware("node-1")] == ["1g.5gb+me"]  # the smallest with a decoder
        assert len(lab.devices("joined", "main")) == 2

    in_lab(scenario, "1xA100-40GB,2xV100-SXM2-16GB")


def test_a_full_node_gets_all_of_its_claims_at_once(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", profile("1g.5gb"))
        names = [f"p{number}" for number in range(14)]
        for name in (*names, "late"):
            await claiming(lab, name, "one")
        await lab.until(lambda: sum(map(lab.ready, (*names, "late"))) == 14, "fourteen pods run")
        (waiting,) = [name for name in (*names, "late") if not lab.ready(name)]
        uuids = {lab.devices(name, "main")[0] for name in (*names, "late") if name != waiting}
        assert len(uuids) == 14
        gone = next(name for name in names if name != waiting)
        await lab.delete(gone)
        await lab.running(waiting)

    in_lab(scenario, "2xA100-40GB")


def test_a_pod_with_several_devices_finds_them_on_one_node(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "some", profile("1g.5gb", count=2), profile("3g.20gb", request="r1"))
        await claiming(lab, "p", "some")
        await lab.running("p")
        assert sorted(each[1] for each in lab.hardware(lab.node_of("p"))) == ["1g.5gb", "1g.5gb", "3g.20gb"]
        assert len(set(lab.devices("p", "main"))) == 3

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")


def test_two_pods_share_a_claim_until_the_last_is_gone(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("both", profile("3g.20gb")), "default")
        for name in ("first", "second"):
            await claiming(lab, name, "both", shared=True)
        await lab.running("first", "second")
        assert lab.devices("first", "main") == lab.devices("second", "main")
        before = lab.hardware(lab.node_of("first"))
        assert len(before) == 1
        await lab.delete("first")
        await lab.until(lambda: lab.pod("first") is None, "the first is gone")
        await lab.clock.sleep(120.0)
        assert lab.ready("second")
        assert lab.hardware(lab.node_of("second")) == before
        await lab.delete("second")
        await lab.until(lambda: not any(map(lab.hardware, lab.cluster.nodes)), "the slice is gone")
        await lab.empty()

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")


def test_nvidias_claims_run_unchanged_where_its_driver_is_not(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "mig", profile("1g.5gb", NVIDIA_DRIVER))
        await claiming(lab, "p", "mig")
        await lab.running("p")
        assert [each[1] for each in lab.hardware()] == ["1g.5gb"]

    in_lab(scenario, driver=NVIDIA_DRIVER)


def test_a_node_goes_back_to_nvidias_driver_and_comes_again_under_a_running_pod(in_lab: Callable[..., None]) -> None:
    """Two drivers of one name never publish the same cards, and the pod keeps its slice all the time."""

    async def scenario(lab: VirtualLab) -> None:
        async def publishers() -> set[bool]:
            found = (await lab.client.list(RESOURCE_SLICES)).items
            return {is_ours(each) for each in found if each.spec.driver == NVIDIA_DRIVER}

        async def give_by_claims(way: str | None) -> None:
            await lab.client.merge_patch(NODES, "node-1", {"metadata": {"labels": {DEVICE_API_LABEL: way}}})
            await lab.clock.sleep(5.0)

        await template(lab, "mig", profile("1g.5gb", NVIDIA_DRIVER))
        await claiming(lab, "stays", "mig")
        await lab.running("stays")
        device = lab.devices("stays", "main")
        await give_by_claims(None)
        assert await publishers() == set()
        theirs = resource_slice("theirs", NVIDIA_DRIVER, "node-1", {"name": "gpu-0"})
        await lab.client.create(RESOURCE_SLICES.as_dicts(), theirs)
        await give_by_claims(DEVICE_API_DRA)
        await claiming(lab, "waits", "mig")
        await lab.clock.sleep(30.0)
        assert await publishers() == {False}
        assert not lab.node_of("waits")
        events = (await lab.client.list(EVENTS)).items
        assert any(each.reason == "ClaimDriverConflict" and "theirs" in each.message for each in events)
        await lab.client.delete(RESOURCE_SLICES, "theirs")
        await lab.running("waits")
        assert await publishers() == {True}
        assert lab.devices("stays", "main") == device != lab.devices("waits", "main")

    in_lab(scenario, driver=NVIDIA_DRIVER)


def test_limits_go_to_nodes_of_the_device_plugin(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.merge_patch(NODES, "node-2", {"metadata": {"labels": {DEVICE_API_LABEL: None}}})
        await template(lab, "one", profile("1g.5gb"))
        await lab.create("by-limits", {"nvidia.com/mig-1g.5gb": 1})
        await claiming(lab, "by-claim", "one")
        await lab.running("by-limits", "by-claim")
        assert (lab.node_of("by-claim"), lab.node_of("by-limits")) == ("node-1", "node-2")

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")


def test_a_node_turns_back_to_the_device_plugin_under_a_pod_with_a_claim(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", profile("1g.5gb"))
        await claiming(lab, "by-claim", "one")
        await lab.running("by-claim")
        await lab.client.merge_patch(NODES, "node-1", {"metadata": {"labels": {DEVICE_API_LABEL: None}}})
        await lab.create("by-limits", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("by-claim", "by-limits")
        await lab.clock.sleep(5.0)
        assert (await lab.client.list(RESOURCE_SLICES)).items == []
        await lab.delete("by-claim")
        await lab.until(lambda: [each[1] for each in lab.hardware()] == ["3g.20gb"], "the claim's slice is gone")

    in_lab(scenario)


def test_agents_that_are_replaced_lose_no_claim(in_lab: Callable[..., None]) -> None:
    """One pod runs, one ends and one starts meanwhile."""

    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", profile("1g.5gb"))
        for name in ("runs", "ends"):
            await claiming(lab, name, "one")
        await lab.running("runs", "ends")
        uuid = lab.devices("runs", "main")
        await lab.kill(AGENT, grace_seconds=None)
        await lab.delete("ends")
        await claiming(lab, "starts", "one")
        await lab.running("runs", "starts")
        await lab.until(lambda: len(lab.hardware()) == 2, "the slice of the ended pod is gone")
        assert lab.devices("runs", "main") == uuid

    in_lab(scenario)


@pytest.mark.parametrize("late", [0.2, *(pytest.param(each, marks=pytest.mark.soak) for each in (0.0, 0.4))])
def test_a_rolling_update_of_the_agents_holds_up_no_claim(in_lab: Callable[..., None], late: float) -> None:
    """Kubelet repeats a failed prepare only after a minute, so one of the two agents must answer each."""

    async def scenario(lab: VirtualLab) -> None:
        async def agents() -> dict[str, bool]:
            found = await lab.client.list(PODS, NS, label_selector=f"app.kubernetes.io/name={AGENT}")
            return {each.metadata.name: each.metadata.deletion_timestamp is not None for each in found.items}

        await template(lab, "one", profile("1g.5gb"))
        (before,) = await agents()
        again = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}
        await lab.client.merge_patch(DAEMONSETS, AGENT, {"spec": {"template": again}}, NS)
        while not (await agents())[before]:
            await lab.clock.sleep(0.05)
        await lab.clock.sleep(late)
        names = [f"p{number}" for number in range(56)]
        for name in names:
            await claiming(lab, name, "one")
            await lab.clock.sleep(0.029)
        await lab.clock.sleep(45.0)
        assert before not in await agents()
        assert [name for name in names if not lab.ready(name)] == []
        assert len({lab.devices(name, "main")[0] for name in names}) == len(names)

    in_lab(scenario, "1*8xA100-40GB")


def test_a_cordoned_node_gets_no_claims(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.merge_patch(NODES, "node-1", {"spec": {"unschedulable": True}})
        await template(lab, "one", profile("3g.20gb"))
        for name in ("a", "b"):
            await claiming(lab, name, "one")
        await lab.running("a", "b")
        assert {lab.node_of("a"), lab.node_of("b")} == {"node-2"}

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")


@pytest.mark.parametrize("evicts", [True, False])
def test_a_fault_of_a_card_ends_its_pods_with_claims_if_the_administrator_says_so(
    in_lab: Callable[..., None], evicts: bool
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        if evicts:
            data = {REPAIRS_KEY: "evictClaims: true"}
            await lab.client.apply(CONFIGMAPS, REPAIRS_MAP, {"data": data}, NS)
        await template(lab, "one", profile("3g.20gb"))
        for name in ("a", "b"):
            await claiming(lab, name, "one")
            await lab.running(name)
        await lab.clock.sleep(5.0)
        nodes = {lab.node_of(name): name for name in ("a", "b")}
        assert len(nodes) == 1  # on one card
        (node,) = nodes
        machine = lab.machine(node)
        machine.lose(machine.uuids()[0])
        if evicts:
            await lab.until(lambda: lab.pod("a") is None and lab.pod("b") is None, "both pods are deleted", 60.0)
        else:
            await lab.clock.sleep(60.0)
            assert lab.pod("a") is not None
        await claiming(lab, "next", "one")
        await lab.running("next")
        assert lab.node_of("next") != node

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")


def test_a_quiet_cluster_with_claims_writes_nothing(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", profile("1g.5gb"))
        await claiming(lab, "p", "one")
        await lab.running("p")
        await lab.clock.sleep(60.0)
        lab.cluster.server.audit.clear()
        await lab.clock.sleep(600.0)
        written = {(each.user, each.resource) for each in lab.cluster.server.audit if each.is_write}
        ours = {resource for user, resource in written if ":tessera-" in user}
        assert ours == {"leases.coordination.k8s.io"}, written
        assert {resource for _, resource in written} <= {"leases.coordination.k8s.io", "nodes"}, written

    in_lab(scenario)


def test_what_a_claim_uses_is_counted_for_its_pod(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", profile("1g.5gb", count=2))
        await claiming(lab, "p", "one")
        await lab.running("p")
        await lab.clock.sleep(30.0)
        (pages,) = lab.cluster.documents.values()
        usage = msgspec.json.decode(pages["/usage"](), type=NodeUsage)
        held = {(each.pod, each.container, each.device) for each in usage.leases}
        assert held == {("p", "main", uuid) for uuid in lab.devices("p", "main")}
        assert len(held) == 2

    in_lab(scenario, pages=True)
