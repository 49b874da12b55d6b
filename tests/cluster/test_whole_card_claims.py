"""Whole cards by ResourceClaims in a whole cluster: installed with --claim-driver, placed by the controller."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.cluster.test_claim_views import is_told, why
from tests.cluster.test_one_sentence import page_of_controller
from tests.cluster.test_queues import page_source
from tests.cluster.test_resource_claims import claiming, in_lab, template
from tests.support.device_claims import claim, exactly
from tests.support.virtual_lab import VirtualLab

from tessera.access.agent_pages import FleetUsage
from tessera.agent.mps.state import PIPE_VARIABLE
from tessera.api.nodes.usage import NodeUsage
from tessera.cli.base.tiles import draw
from tessera.dashboard.aliases import Aliases
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.documents import CardDocument
from tessera.dashboard.view.cluster_map import make_map
from tessera.dra.claims import DEVICE_CLASSES, RESOURCE_CLAIMS
from tessera.explain.fleet_map import map_fleet
from tessera.forecast.queue_page import QueuedPod, QueuePage
from tessera.kube.resources import EVENTS, NAMESPACES
from tessera.nvml.interface import ComputeMode
from tessera.observe.cluster_reading import ClusterReading, read_cluster
from tessera.observe.usage_rows import lease_rows
from tessera.provisioning.startup_deadline import missing_offer, offers_gpus
from tessera.visibility import Redactor, Visibility
from tessera_lab.activity.lab_cards import LabCards

__all__ = ["in_lab"]


def test_a_whole_card_runs_from_its_template_to_the_container(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", exactly("gpu", "gpu.tessera.dev"))
        for name in ("p", "q", "late"):
            await claiming(lab, name, "one")
        await lab.until(lambda: sum(map(lab.ready, ("p", "q", "late"))) == 2, "two pods run")
        running = [name for name in ("p", "q", "late") if lab.ready(name)]
        (waiting,) = {"p", "q", "late"} - set(running)
        cards = {lab.devices(name, "main")[0] for name in running}
        assert len(cards) == 2
        assert all(each.startswith("GPU-") for each in cards)
        await lab.delete(running[0])
        await lab.running(waiting)
        for name in (running[1], waiting):
            await lab.delete(name)
        await lab.until(lambda: lab.pod(waiting) is None, "the pods are gone")
        await lab.empty()
        assert (await lab.client.list(RESOURCE_CLAIMS, "default")).items == []

    in_lab(scenario, "2xT4")


def test_a_claim_waits_for_a_whole_card_that_is_held_back(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", exactly("gpu", "gpu.tessera.dev"))
        await claiming(lab, "holder", "one")
        await lab.running("holder")
        (other,) = set(lab.machine().uuids()) - set(lab.devices("holder", "main"))
        LabCards(lab.cluster.nodes).break_card(f"node-1/{lab.machine().uuids().index(other)}", xid=79)
        await lab.clock.sleep(60)
        await claiming(lab, "waits", "one")
        await lab.clock.sleep(60)
        assert [(each.name, each.reason) for each in page_of_controller().pods] == [("waits", "card-held-back")]

    in_lab(scenario, "2xT4")


def test_pods_share_a_card_by_the_mps_daemon_of_their_claim(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        sharing = {
            "strategy": "MPS",
            "mpsConfig": {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "4Gi"},
        }
        parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
        config = [{"opaque": {"driver": "gpu.tessera.dev", "parameters": parameters}}]
        shared = claim("shared", exactly("gpu", "gpu.tessera.dev"), config=config)
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), shared, "default")
        for name in ("p", "q"):
            await claiming(lab, name, "shared", shared=True)
        await lab.running("p")
        await lab.running("q")
        assert lab.devices("p", "main") == lab.devices("q", "main")
        pipes = {lab.environment(name, "main")[PIPE_VARIABLE] for name in ("p", "q")}
        (pipe,) = pipes
        assert pipe.startswith("/mps/claim-")
        machine = lab.machine()
        (gpu,) = machine.uuids()
        assert machine.compute_mode(gpu) is ComputeMode.EXCLUSIVE_PROCESS
        for name in ("p", "q"):
            await lab.delete(name)
        await lab.until(lambda: lab.pod("p") is None and lab.pod("q") is None, "the pods are gone")
        await lab.client.delete(RESOURCE_CLAIMS, "shared", "default")
        await lab.empty()
        assert machine.compute_mode(gpu) is ComputeMode.DEFAULT

    in_lab(scenario, "1xT4")


def test_admin_access_is_for_labelled_namespaces_and_takes_nothing(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        labels = {"resource.kubernetes.io/admin-access": "true"}
        await lab.client.merge_patch(NAMESPACES, "default", {"metadata": {"labels": labels}})
        expression = "device.driver == 'gpu.tessera.dev' && device.attributes['gpu.tessera.dev'].type == 'gpu'"
        cards = {"metadata": {"name": "cards"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        await lab.client.create(DEVICE_CLASSES.as_dicts(), cards)
        tolerations = [{"key": "tessera.dev/placed-by", "operator": "Exists"}]
        await template(lab, "one", exactly("gpu", "gpu.tessera.dev"))
        await template(
            lab, "all", exactly("gpu", "cards", adminAccess=True, allocationMode="All", tolerations=tolerations)
        )
        for name, of in (("p", "one"), ("monitor", "all"), ("q", "one")):
            await claiming(lab, name, of)
            await lab.running(name)
        assert len(lab.devices("monitor", "main")) == 2
        assert {*lab.devices("p", "main"), *lab.devices("q", "main")} == set(lab.devices("monitor", "main"))
        for name in ("p", "q"):
            await lab.delete(name)
        await lab.empty()
        assert lab.ready("monitor")

    in_lab(scenario, "2xT4")


def test_map_top_and_page_show_whole_cards_of_claims_as_those_of_limits(in_lab: Callable[..., Any]) -> None:
    """They were drawn as cards of eight slots with one slice of unknown profile."""

    async def scenario(lab: VirtualLab) -> None:
        shared = claim("shared", exactly("gpu", "gpu.tessera.dev"))
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), shared, "default")
        for name in ("first", "second"):
            await claiming(lab, name, "shared", shared=True)
        await lab.running("first", "second")
        await template(lab, "two", exactly("gpu", "gpu.tessera.dev", count=2))
        await claiming(lab, "late", "two")
        await lab.until(lambda: is_told(lab.pod("late")), "it is told")
        (pages,) = lab.cluster.documents.values()
        usage = msgspec.json.decode(pages["/usage"](), type=NodeUsage)
        record, pods = lab.instaslice(), [lab.existing_pod(name) for name in ("first", "second", "late")]
        row = QueuedPod(namespace="default", name="late", profiles=("tessera.dev/gpu",) * 2)

        def page(*nodes: NodeUsage) -> dict[str, Any]:
            found = make_documents(FleetUsage(nodes=nodes), pods, [record], queue=QueuePage(leads=True, pods=(row,)))
            return {name: each for name, each in found.items() if isinstance(each, CardDocument) or name[0] != "c"}

        def cards(found: dict[str, Any]) -> list[tuple[Any, ...]]:
            shown = [each for each in found.values() if isinstance(each, CardDocument)]
            return [
                (card.kind, card.mig, card.slots, card.tiles, card.held, card.free, {each.pod for each in card.leases})
                for card in sorted(shown, key=lambda card: -card.held)
            ]

        answering = page(usage)
        assert cards(answering) == [
            ("whole", False, 0, (), 1.0, {"gpu": 0}, {"first", "second"}),
            ("whole", False, 0, (), 0.0, {"gpu": 1}, set()),
        ]
        assert answering["summary"].starting == 0
        assert answering["waiting/default/late"].requests == "2 x tessera.dev/gpu"
        assert page(msgspec.structs.replace(usage, leases=()))["summary"].starting == 1
        silent = cards(page())
        assert silent[0] == ("whole", False, 0, (), 1.0, {}, {"first"})
        assert silent[1][4:] == (0.0, {}, set())

        holders = [{each.pod for each in card.holders} for card in map_fleet([record], [usage])[0].cards]
        assert sorted(holders, key=len) == [set(), {"default/first", "default/second"}]
        tenant = Aliases(Visibility(namespaces=frozenset({"others"})), Redactor(b"key"))
        async with page_source(lab) as source:
            objects = tenant.hide(source.objects)
        fleet = tenant.hide_fleet(FleetUsage(nodes=(usage,)))
        view = make_map(ClusterReading(instaslices=objects.instaslices, fleet=fleet))
        (names,) = [{each.pod for each in card.holders} for card in view.nodes[0].cards if card.holders]
        assert len(names) == 2
        assert all(each.startswith("~/~") for each in names)
        rows = [(each.card is not None, each.lease.share, each.lease.namespace) for each in lease_rows([usage])]
        assert rows == [(True, 0.5, "default")] * 2

    in_lab(scenario, "2xT4", pages=True)


def test_views_show_whole_cards_by_claims(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", exactly("gpu", "gpu.tessera.dev"))
        await claiming(lab, "holder", "one")
        await lab.running("holder")
        await claiming(lab, "late", "one")
        await lab.until(lambda: is_told(lab.pod("late")), "it is told")
        held, waiting = await why(lab, "holder"), await why(lab, "late")
        assert (held.case, held.facts[0]) == ("runs", "it has 1 x tessera.dev/gpu")
        assert waiting.case == "full", waiting
        assert "it requests tessera.dev/gpu" in waiting.facts
        shown = make_map(await read_cluster(lab.client))
        (card,) = shown.nodes[0].cards
        assert (card.kind, card.slots, card.tiles, card.possible) == ("whole", 0, (), {"gpu": 0})
        assert [each.pod for each in card.holders] == ["default/holder"]
        shows = list(draw(shown.nodes, colour=False))
        assert "1 of 1 card held" in shows[0]
        assert "[a whole card" in shows[2]
        node = lab.existing_node()
        assert missing_offer(node) == ""
        assert offers_gpus(node)
        assert not any("quota" in name for name in node.status.allocatable)

    in_lab(scenario, "1xT4")


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("seconds", [20.0, 60.0])
def test_a_card_that_somebody_else_computes_on_is_given_when_that_has_ended(
    in_lab: Callable[..., None], seconds: float, restart: bool
) -> None:
    """Its process was started by hand, or has the card from another driver. Kubelet gives a call 45 s."""

    async def scenario(lab: VirtualLab) -> None:
        machine = lab.machine()
        (gpu,) = machine.uuids()
        pid = machine.start_process(gpu, 2**30)
        await template(lab, "one", exactly("gpu", "gpu.tessera.dev"))
        await claiming(lab, "p", "one")
        await lab.clock.sleep(seconds / 2)
        if restart:
            await lab.kill("tessera-agent", grace_seconds=None)
        await lab.clock.sleep(seconds / 2)
        assert not lab.ready("p")
        events = await lab.client.list(EVENTS, "default")
        told = {each.message for each in events.items if each.reason == "SliceInUse"}
        assert told == {f"card {gpu} cannot be given to a claim, it is used by process {pid}"}
        failed = [each.message for each in events.items if each.reason == "FailedPrepareDynamicResources"]
        if not restart:  # else the call ended with the agent
            assert bool(failed) is (seconds > 45)
            assert all(f"used by process {pid}" in each for each in failed)
        machine.end_process(pid)
        await lab.running("p")
        assert set(lab.devices("p", "main")) == {gpu}

    in_lab(scenario, "1xT4")


def test_a_card_of_a_claim_stays_given_over_a_restart_of_the_agent(in_lab: Callable[..., None]) -> None:
    """The process on it is the claim's own."""

    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", exactly("gpu", "gpu.tessera.dev"))
        await claiming(lab, "p", "one")
        await lab.running("p")
        machine = lab.machine()
        (gpu,) = machine.uuids()
        machine.start_process(gpu, 2**30)
        await lab.kill("tessera-agent", grace_seconds=None)
        await lab.clock.sleep(60.0)
        assert lab.ready("p")
        events = await lab.client.list(EVENTS, "default")
        assert not [each for each in events.items if each.reason == "SliceInUse"]

    in_lab(scenario, "1xT4")
