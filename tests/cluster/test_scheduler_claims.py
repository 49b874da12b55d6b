"""ResourceClaims that kube-scheduler's allocator places (--claim-placement scheduler), prepared by agents."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.cluster.test_claim_views import why
from tests.cluster.test_resource_claims import claiming, profile, template
from tests.cluster.test_resource_claims import in_lab as in_claims_lab
from tests.cluster.test_share_claims import divide, share
from tests.support.device_claims import claim, claiming_pod, exactly
from tests.support.virtual_lab import VirtualLab

from tessera.api.names import DEVICE_API_LABEL, GATE
from tessera.cli.install.manifests import AGENT, CONTROLLER
from tessera.dashboard.view.cluster_map import make_map
from tessera.doctor.examination import examine
from tessera.doctor.facts import Verdict
from tessera.dra.claims import RESOURCE_CLAIMS
from tessera.dra.node_devices import NVIDIA_DRIVER
from tessera.kube.resources import DEPLOYMENTS, NODES, PODS
from tessera.observe.cluster_reading import read_cluster

__all__ = ["in_claims_lab"]


@pytest.fixture
def in_lab(in_claims_lab: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a scenario in a cluster where kube-scheduler places claims."""
    return partial(in_claims_lab, placement="scheduler")


def recorded(lab: VirtualLab, node: str = "node-1") -> dict[str, list[str]]:
    """By pod, the profiles that the node's object has for it."""
    requests = lab.instaslice(node).spec.pod_allocation_requests.values()
    return {each.pod_ref.name: sorted(one.profile for one in each.slices) for each in requests}


def test_what_the_scheduler_gave_is_on_record_and_nothing_is_written_beside(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        lab.cluster.server.audit.clear()
        await template(lab, "two", profile("1g.5gb", count=2), profile("3g.20gb", request="r1"))
        await claiming(lab, "p", "two")
        assert GATE not in lab.gates("p")
        await lab.running("p")
        assert recorded(lab) == {"p": ["1g.5gb", "1g.5gb", "3g.20gb"]}
        assert set(lab.devices("p", "main")) == set(lab.mig_uuids())
        assert sorted(each[1] for each in lab.hardware()) == ["1g.5gb", "1g.5gb", "3g.20gb"]
        await lab.delete("p")
        await lab.empty()
        assert lab.hardware() == []
        assert (await lab.client.list(RESOURCE_CLAIMS, "default")).items == []
        ours = {(each.user, each.resource) for each in lab.cluster.server.audit if each.is_write}
        assert not [each for each in ours if ":tessera-" in each[0] and each[1].startswith(("resourceclaims", "pods"))]

    in_lab(scenario)


def test_partitions_of_one_card_exclude_one_another_and_a_full_node_waits(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "half", profile("3g.20gb"))
        await template(lab, "small", profile("1g.5gb"))
        for name in ("a", "b"):
            await claiming(lab, name, "half")
        await lab.running("a", "b")
        await claiming(lab, "late", "small")
        await lab.clock.sleep(60.0)
        assert not lab.node_of("late")
        assert GATE not in lab.gates("late")
        assert set(recorded(lab)) == {"a", "b"}
        await lab.delete("a")
        await lab.running("late", "b")
        assert sorted(each[1] for each in lab.hardware()) == ["1g.5gb", "3g.20gb"]

    in_lab(scenario)


def test_a_device_goes_from_pod_to_pod_of_one_namespace(in_lab: Callable[..., None]) -> None:
    """kube-scheduler gives a device again before the agent has destroyed its slice."""

    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "whole", profile("7g.40gb"))
        for number in range(6):
            await claiming(lab, f"p{number}", "whole")
        for _ in range(6):
            left = [f"p{number}" for number in range(6) if lab.pod(f"p{number}") is not None]
            await lab.until(lambda left=left: any(map(lab.ready, left)), "the next one runs", 30.0)
            (runs,) = filter(lab.ready, left)
            assert set(recorded(lab)) == {runs}
            assert lab.devices(runs, "main") == lab.mig_uuids()
            await lab.delete(runs)
            await lab.until(lambda runs=runs: lab.pod(runs) is None, "it is gone")
        await lab.empty()

    in_lab(scenario)


def test_two_pods_share_a_claim_until_the_last_is_gone(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("both", profile("3g.20gb")), "default")
        for name in ("first", "second"):
            await claiming(lab, name, "both", shared=True)
        await lab.running("first", "second")
        before = lab.hardware()
        assert lab.devices("first", "main") == lab.devices("second", "main")
        (owner,) = recorded(lab)
        (other,) = {"first", "second"} - {owner}
        await lab.delete(owner)
        await lab.until(lambda: lab.pod(owner) is None, "the first is gone")
        await lab.clock.sleep(120.0)
        assert lab.ready(other)
        assert lab.hardware() == before
        await lab.delete(other)
        await lab.empty()
        assert lab.hardware() == []

    in_lab(scenario)


@pytest.mark.parametrize("app", [AGENT, CONTROLLER])
def test_a_process_that_is_replaced_loses_no_claim(in_lab: Callable[..., None], app: str) -> None:
    """One pod runs, one ends and one starts meanwhile."""

    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", profile("3g.20gb"))
        for name in ("runs", "ends"):
            await claiming(lab, name, "one")
        await lab.running("runs", "ends")
        uuid = lab.devices("runs", "main")
        await lab.kill(app, grace_seconds=None if app == AGENT else 0)
        await lab.delete("ends")
        await claiming(lab, "starts", "one")
        await lab.running("runs", "starts")
        await lab.until(lambda: len(lab.hardware()) == 2, "the slice of the ended pod is gone")
        assert lab.devices("runs", "main") == uuid
        assert set(recorded(lab)) == {"runs", "starts"}

    in_lab(scenario)


def test_limits_on_other_nodes_are_placed_by_the_controller(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.merge_patch(NODES, "node-2", {"metadata": {"labels": {DEVICE_API_LABEL: None}}})
        await lab.clock.sleep(5.0)
        await template(lab, "one", profile("1g.5gb"))
        await template(lab, "whole", profile("7g.40gb"))
        await lab.create("by-limits", {"nvidia.com/mig-7g.40gb": 1})
        await claiming(lab, "by-claim", "one")
        await lab.running("by-limits", "by-claim")
        await lab.create("waits", {"nvidia.com/mig-1g.5gb": 1})
        assert (lab.node_of("by-claim"), lab.node_of("by-limits")) == ("node-1", "node-2")
        await claiming(lab, "waits-by-claim", "whole")
        await lab.clock.sleep(30.0)
        assert lab.gates("waits") == [GATE]
        assert not lab.node_of("waits-by-claim")
        await lab.delete("by-limits")
        await lab.running("waits", "by-claim")

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")


def test_a_device_that_another_claim_holds_is_refused_until_it_is_free(in_lab: Callable[..., None]) -> None:
    """The API server takes any allocation."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("one", profile("3g.20gb")), "default")
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("other", profile("3g.20gb")), "default")
        await claiming(lab, "holder", "one", shared=True)
        await lab.running("holder")
        given = (await lab.client.get(RESOURCE_CLAIMS.as_dicts(), "one", "default"))["status"]["allocation"]
        patch = {"status": {"allocation": given}}
        await lab.client.merge_patch(RESOURCE_CLAIMS, "other", patch, "default", subresource="status")
        await claiming(lab, "late", "other", shared=True)
        await lab.clock.sleep(180.0)
        assert lab.node_of("late")
        assert lab.ready("holder")
        assert not lab.ready("late")
        assert len(lab.hardware()) == 1
        (told,) = {each.message for each in lab.events_of("late", "FailedPrepareDynamicResources")}
        assert "has not recorded" in told
        await lab.delete("holder")
        await lab.running("late")

    in_lab(scenario)


def test_whole_cards_are_given_once_each(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", exactly("gpu", "gpu.nvidia.com"))
        names = ("p", "q", "late")
        for name in names:
            await claiming(lab, name, "one")
        await lab.until(lambda: sum(map(lab.ready, names)) == 2, "two pods run")
        (waiting,) = (name for name in names if not lab.ready(name))
        running = sorted({*names} - {waiting})
        assert len({lab.devices(name, "main")[0] for name in running}) == 2
        assert recorded(lab) == {name: ["tessera.dev/gpu"] for name in running}
        await lab.delete(running[0])
        await lab.running(waiting)

    in_lab(scenario, "2xT4", NVIDIA_DRIVER)


def test_views_show_what_the_scheduler_gave(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "half", profile("3g.20gb"))
        await template(lab, "whole", profile("7g.40gb"))
        await claiming(lab, "holder", "half")
        await lab.running("holder")
        await claiming(lab, "late", "whole")
        await lab.clock.sleep(10.0)
        found = await why(lab, "holder")
        assert (found.case, found.facts[0]) == ("runs", "it has 3g.20gb on GPU 0, memory slots 4-7")
        found = await why(lab, "late")
        assert found.case == "full"
        assert any("pod default/holder" in each for each in found.help)
        (card,) = make_map(await read_cluster(lab.client)).nodes[0].cards
        assert [(tile.pod, tile.profile) for tile in card.tiles] == [("default/holder", "3g.20gb")]
        judged = [each for each in await examine(lab.client, lab.clock) if each.check.startswith("claim")]
        assert {each.verdict for each in judged} == {Verdict.OK}, judged

    in_lab(scenario)


def test_a_pod_with_limits_too_is_refused(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "one", profile("1g.5gb"))
        body = claiming_pod("both", {"name": "gpu", "resourceClaimTemplateName": "one"})
        body["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/mig-1g.5gb": 1}
        await lab.client.create(PODS.as_dicts(), body, "default")
        await lab.until(lambda: lab.events_of("both", "SliceRefused"), "it is refused")

    in_lab(scenario)


def test_pods_at_the_gate_are_freed_once_the_scheduler_places(in_lab: Callable[..., None]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "whole", profile("7g.40gb"))
        for name in ("holder", "waits"):
            await claiming(lab, name, "whole")
            await lab.clock.sleep(5.0)
        await lab.running("holder")
        assert lab.gates("waits") == [GATE]
        found = await lab.client.get(DEPLOYMENTS.as_dicts(), CONTROLLER, "tessera-system")
        (container,) = found["spec"]["template"]["spec"]["containers"]
        container["args"] = [*container["args"], "--claim-placement=scheduler"]
        patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
        await lab.client.merge_patch(DEPLOYMENTS, CONTROLLER, patch, "tessera-system")
        await lab.until(lambda: not lab.gates("waits"), "it is free")
        assert lab.ready("holder")
        assert set(recorded(lab)) == {"holder"}

    in_lab(scenario, placement="controller")


def test_shares_of_a_card_go_to_as_many_pods_as_its_profile_says(in_lab: Callable[..., None]) -> None:
    """kube-scheduler counts the shares; which of the card's are a claim's is on record."""

    async def scenario(lab: VirtualLab) -> None:
        await divide(lab, "slice-4")
        await template(lab, "two", share(shares="2"))
        await template(lab, "one", share())
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("both", share()), "default")
        await claiming(lab, "a", "two")
        await claiming(lab, "b", "one")
        for name in ("c", "d"):
            await claiming(lab, name, "both", shared=True)
        await lab.running("a", "b", "c", "d")
        assert len({tuple(lab.devices(name, "main")) for name in "abcd"}) == 1
        had = await lab.client.list(RESOURCE_CLAIMS, "default")
        allocations = [each.status.allocation for each in had.items]
        assert len({each.devices.results[0].share_id for each in allocations if each is not None}) == 3
        assert sorted(map(len, recorded(lab).values())) == [1, 1, 2]
        await claiming(lab, "late", "one")
        await lab.clock.sleep(60.0)
        assert not lab.node_of("late")
        await lab.delete("a")
        await lab.running("late")
        for name in ("b", "c", "d", "late"):
            await lab.delete(name)
        await lab.empty()
        assert recorded(lab) == {}

    in_lab(scenario, "1xT4")


@pytest.mark.parametrize("app", [AGENT, CONTROLLER])
def test_shares_outlive_a_restart(in_lab: Callable[..., None], app: str) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await divide(lab, "slice-2")
        await template(lab, "one", share())
        await claiming(lab, "a", "one")
        await lab.running("a")
        before = recorded(lab)
        await lab.kill(app, grace_seconds=None if app == AGENT else 0)
        await claiming(lab, "b", "one")
        await lab.running("a", "b")
        assert recorded(lab) == before | {"b": ["tessera.dev/gpu.shared"]}
        await lab.delete("a")
        await lab.delete("b")
        await lab.empty()

    in_lab(scenario, "1xT4")


@pytest.mark.parametrize("named", [False, True])
def test_a_share_goes_back_whose_pod_ended_while_no_controller_ran(in_lab: Callable[..., None], named: bool) -> None:
    """Another named claim has a share of the same card, and which share is a claim's is only on record."""

    async def scenario(lab: VirtualLab) -> None:
        await divide(lab, "slice-2")
        await template(lab, "one", share())
        for name in ("ends", "stays", "comes"):
            await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim(name, share()), "default")
        for name in ("ends", "stays"):
            await claiming(lab, name, name, shared=True)
        await lab.running("ends", "stays")
        await lab.client.merge_patch(DEPLOYMENTS, CONTROLLER, {"spec": {"replicas": 0}}, "tessera-system")
        await lab.clock.sleep(60.0)
        await lab.delete("ends")
        await lab.until(lambda: lab.pod("ends") is None, "it is gone")
        await claiming(lab, "comes", "comes" if named else "one", shared=named)
        await lab.until(lambda: bool(lab.node_of("comes")), "it is bound")
        await lab.client.merge_patch(DEPLOYMENTS, CONTROLLER, {"spec": {"replicas": 1}}, "tessera-system")
        await lab.running("comes", "stays")
        assert set(recorded(lab)) == {"comes", "stays"}
        for name in ("comes", "stays"):
            await lab.delete(name)
        await lab.empty()
        assert recorded(lab) == {}

    in_lab(scenario, "1xT4")
