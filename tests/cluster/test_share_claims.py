"""Shares of cards by ResourceClaims in a whole cluster: a sharing profile divides the cards, the controller places."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from tests.cluster.test_claim_views import is_told, why
from tests.cluster.test_resource_claims import claiming, in_lab, template
from tests.support.device_claims import claim_template, exactly
from tests.support.virtual_lab import VirtualLab

from tessera.agent.mps.state import PIPE_VARIABLE
from tessera.api.names import DEVICE_API_LABEL
from tessera.api.nodes.usage import NodeUsage
from tessera.api.sharing.profile import PROFILE_LABEL
from tessera.dra.claims import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, AllocatedDevice
from tessera.dra.resource_slices import RESOURCE_SLICES
from tessera.explain.card_map import cards_of
from tessera.kube.resources import EVENTS, NODES
from tessera.nvml.interface import ComputeMode
from tessera.observe.cluster_reading import read_cluster
from tessera.provisioning.startup_deadline import missing_offer
from tessera_lab.activity.lab_cards import LabCards

__all__ = ["in_lab"]
GIB = 2**30
PROFILE = "device.attributes['gpu.tessera.dev'].profile == '1g.5gb'"


async def divide(lab: VirtualLab, profile: str | None, *, name: str = "node-1") -> None:
    """Selects a sharing profile, and waits until the node's cards are published as it says."""
    await lab.client.merge_patch(NODES, name, {"metadata": {"labels": {PROFILE_LABEL: profile}}})
    wanted = f"{name}/shares" if profile else name
    for _ in range(60):
        found = (await lab.client.list(RESOURCE_SLICES)).items
        devices = [each.spec.pool.name for each in found if each.spec.node_name == name for _ in each.spec.devices]
        if set(devices) == {wanted}:
            return
        await lab.clock.sleep(1.0)
    raise AssertionError(f"{profile} is not published: {devices}")


def share(name: str = "gpu", **amounts: str) -> dict[str, Any]:
    """A request for a share."""
    return exactly(name, "gpu-shares.tessera.dev", **({"capacity": {"requests": amounts}} if amounts else {}))


async def results(lab: VirtualLab) -> Mapping[str, AllocatedDevice]:
    """What each claim has, by its name before the generated part."""
    found = (await lab.client.list(RESOURCE_CLAIMS, "default")).items
    return {
        each.metadata.name.partition("-")[0]: each.status.allocation.devices.results[0]
        for each in found
        if each.status.allocation is not None
    }


def test_as_many_pods_share_a_card_as_its_profile_says(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await divide(lab, "slice-2")
        await template(lab, "one", share())
        for name in ("p", "q"):
            await claiming(lab, name, "one")
            await lab.running(name)
        assert lab.devices("p", "main") == lab.devices("q", "main")
        had = await results(lab)
        assert {each.pool for each in had.values()} == {"node-1/shares"}
        assert {each.device for each in had.values()} == {"gpu-0-shares"}
        assert len({each.share_id for each in had.values()}) == 2
        assert [each.consumed_capacity["shares"] for each in had.values()] == ["1", "1"]
        await claiming(lab, "late", "one")
        await lab.until(lambda: is_told(lab.pod("late")), "it is told")
        assert (await why(lab, "late")).case == "full"
        await lab.delete("p")
        await lab.running("late")
        for name in ("q", "late"):
            await lab.delete(name)
        await lab.empty()

    in_lab(scenario, "1xT4")


def test_a_claim_takes_as_many_shares_as_its_memory_is(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await divide(lab, "slice-4")
        await template(lab, "large", share(memory="10Gi"))  # of 15 GiB: three of four shares
        await template(lab, "small", share())
        await template(lab, "whole", share(shares="5"))
        await claiming(lab, "large", "large")
        await lab.running("large")
        (had,) = (await results(lab)).values()
        assert had.consumed_capacity == {"memory": "10Gi", "shares": "1"}
        await claiming(lab, "small", "small")
        await lab.running("small")
        await claiming(lab, "late", "small")
        await lab.until(lambda: is_told(lab.pod("late")), "it is told")
        assert (await why(lab, "late")).case == "full"
        await claiming(lab, "never", "whole")
        await lab.clock.sleep(5.0)
        assert "capacity.requests.shares" in str(await why(lab, "never"))
        await lab.delete("large")
        await lab.running("late")

    in_lab(scenario, "1xT4")


def test_shares_by_mps_have_one_daemon_for_all_claims_of_a_node(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await divide(lab, "mps-2")
        await template(lab, "one", share())
        for name in ("p", "q", "r"):
            await claiming(lab, name, "one")
            await lab.running(name)
        (pipe,) = {lab.environment(name, "main")[PIPE_VARIABLE] for name in ("p", "q", "r")}
        assert pipe.startswith("/mps/claim-shares")
        machine = lab.machine()
        assert {machine.compute_mode(gpu) for gpu in machine.uuids()} == {ComputeMode.EXCLUSIVE_PROCESS}
        for name in ("p", "q", "r"):
            await lab.delete(name)
        await lab.empty()
        await lab.until(
            lambda: {machine.compute_mode(gpu) for gpu in machine.uuids()} == {ComputeMode.DEFAULT}, "the daemon ends"
        )

    in_lab(scenario, "2xT4")


@pytest.mark.parametrize("profile", ["slice-4", None])
def test_a_card_is_divided_anew_once_no_pod_has_it(in_lab: Callable[..., None], profile: str | None) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await divide(lab, "slice-2")
        await template(lab, "one", share() if profile else exactly("gpu", "gpu.tessera.dev"))
        await template(lab, "first", share())
        await claiming(lab, "p", "first")
        await lab.running("p")
        await lab.client.merge_patch(NODES, "node-1", {"metadata": {"labels": {PROFILE_LABEL: profile}}})
        names = ("q", "r", "s")[: 3 if profile else 1]
        for name in names:
            await claiming(lab, name, "one")
        await lab.clock.sleep(30.0)
        await lab.kill("tessera-agent", grace_seconds=None)
        await lab.clock.sleep(30.0)
        assert lab.ready("p")
        assert not any(map(lab.ready, names))
        await lab.delete("p")
        for name in names:
            await lab.running(name)

    in_lab(scenario, "1xT4")


def test_a_server_that_keeps_no_shares_is_reported(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.merge_patch(NODES, "node-1", {"metadata": {"labels": {PROFILE_LABEL: "slice-2"}}})
        await lab.clock.sleep(30.0)
        events = (await lab.client.list(EVENTS)).items
        (told,) = [each for each in events if each.reason == "SharesNotKept"]
        assert "DRAConsumableCapacity" in told.message
        slices = (await lab.client.list(RESOURCE_SLICES)).items
        assert not any(each.spec.devices for each in slices)
        await template(lab, "one", share())
        await claiming(lab, "p", "one")
        await lab.clock.sleep(5.0)
        answer = str(await why(lab, "p"))
        assert "no node gives shares to claims" in answer
        await lab.client.merge_patch(NODES, "node-1", {"metadata": {"labels": {DEVICE_API_LABEL: None}}})
        await lab.until(
            lambda: lab.existing_node().status.allocatable.get("nvidia.com/gpu.shared") == "2",
            "shares are given by limits",
        )

    in_lab(scenario, "1xT4", kubernetes="1.35")


def test_views_and_a_quiet_node_with_shares(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await divide(lab, "slice-4")
        await template(lab, "two", share(shares="2"))
        await claiming(lab, "holder", "two")
        await lab.running("holder")
        held = await why(lab, "holder")
        assert (held.case, held.facts[0]) == ("runs", "it has 2 x tessera.dev/gpu.shared")
        await lab.clock.sleep(60.0)
        (pages,) = lab.cluster.documents.values()
        usage = msgspec.json.decode(pages["/usage"](), type=NodeUsage)
        assert [(each.pod, each.kind, each.share) for each in usage.leases] == [("holder", "time-slicing", 0.5)]
        assert [(each.kind, each.replicas) for each in usage.cards] == [("time-slicing", 4)]
        (on_record,) = cards_of((await read_cluster(lab.client)).instaslices)
        assert [(each.kind, each.replicas, each.possible) for each in on_record.cards] == [("shares", 4, {"share": 2})]
        assert missing_offer(lab.existing_node()) == ""
        await lab.clock.sleep(60.0)
        lab.cluster.server.audit.clear()
        await lab.clock.sleep(600.0)
        written = {(each.user, each.resource) for each in lab.cluster.server.audit if each.is_write}
        ours = {resource for user, resource in written if ":tessera-" in user}
        assert ours <= {"leases.coordination.k8s.io", "configmaps"}  # usage is summed up in a ConfigMap

    in_lab(scenario, "1xT4", pages=True)


def test_constraints_hold_over_slices_shares_and_whole_cards(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        rules = [{"distinctAttribute": "gpu.tessera.dev/index"}, {"matchAttribute": "gpu.tessera.dev/driverVersion"}]
        small = exactly("slices", "mig.tessera.dev", PROFILE, count=2)
        both = claim_template("both", small, exactly("card", "gpu.tessera.dev"), constraints=rules)
        await lab.client.create(RESOURCE_CLAIM_TEMPLATES.as_dicts(), both, "default")
        await claiming(lab, "p", "both")
        await lab.running("p")
        (held,) = (await lab.client.list(RESOURCE_CLAIMS, "default")).items
        assert held.status.allocation is not None
        names = [each.device.split("-")[1] for each in held.status.allocation.devices.results]
        assert len(set(names)) == len(names) == 3
        assert len(lab.devices("p", "main")) == 3
        await claiming(lab, "q", "both")
        await lab.until(lambda: is_told(lab.pod("q")), "it is told")

    in_lab(scenario, "2xA100-40GB+1xT4")


def test_a_pod_with_a_share_that_takes_its_neighbours_memory_is_ended(in_lab: Callable[..., None]) -> None:
    """As a pod with shares by limits: its part is that of its claim's shares."""

    async def scenario(lab: VirtualLab) -> None:
        await divide(lab, "slice-4")
        await template(lab, "one", share())
        await template(lab, "two", share(shares="2"))
        for name, of in (("hog", "one"), ("large", "two"), ("neighbour", "one")):
            await claiming(lab, name, of)
            await lab.running(name)
        cards = LabCards(lab.cluster.nodes)
        cards.use_memory("default", "neighbour", GIB)
        cards.use_memory("default", "large", 7 * GIB)
        await lab.clock.sleep(90.0)
        assert all(map(lab.ready, ("hog", "large", "neighbour")))
        cards.use_memory("default", "hog", 6 * GIB)
        await lab.until(lambda: not lab.ready("hog"), "it is ended", 120.0)
        assert all(map(lab.ready, ("large", "neighbour")))
        (event,) = [each for each in (await lab.client.list(EVENTS, "default")).items if "Terminated" in each.reason]
        assert (event.involved_object.name, event.type) == ("hog", "Warning")

    in_lab(scenario, "1xT4", memory_limits="kill")
