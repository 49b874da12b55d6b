"""An autoscaler makes nodes for pods that wait for slices: from zero, as many as they need, and no more."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.cluster.autoscaled import GROUPS, SHARES, WHOLE, autoscaled, made, placeholders
from tests.cluster.new_nodes import REQUESTS_CRD, Nodes

from tessera.clock import rfc3339
from tessera.explain.explanation import parse_query
from tessera.explain.query import explain
from tessera.kube.errors import ApiError
from tessera.kube.resources import CONFIGMAPS, CRDS, NAMESPACES, POD_TEMPLATES, PROVISIONING_REQUESTS
from tessera_lab.cloud.autoscaler.process import ClusterAutoscaler

Play = Callable[..., None]
GPU, SHARE = "nvidia.com/gpu", "nvidia.com/gpu.shared"
ONE, THREE, SEVEN = (f"nvidia.com/mig-{profile}" for profile in ("1g.5gb", "3g.20gb", "7g.40gb"))


async def requests(lab: Nodes) -> list[dict[str, Any]]:
    return list((await lab.client.list(PROVISIONING_REQUESTS.as_dicts(), "tessera-system")).items)


async def take_requests(lab: Nodes, scaler: ClusterAutoscaler) -> None:
    """A stand-in for Cluster Autoscaler with ``--enable-provisioning-requests``: a machine for each new request."""
    seen: set[str] = set()
    while True:
        for item in await requests(lab):
            meta, (pod_set,) = item["metadata"], item["spec"]["podSets"]
            if meta["uid"] in seen:
                continue
            seen.add(meta["uid"])
            template = await lab.client.get(
                POD_TEMPLATES.as_dicts(), pod_set["podTemplateRef"]["name"], "tessera-system"
            )
            assert template["template"]["spec"]["nodeSelector"] == {"pool": "pairs"}
            assert item["spec"]["provisioningClassName"] == "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
            scaler.cloud.increase("pairs", pod_set["count"])
            conditions = [
                {"type": kind, "status": "True", "lastTransitionTime": rfc3339(lab.clock.now())}
                for kind in ("Accepted", "Provisioned")
            ]
            await lab.client.merge_patch(
                PROVISIONING_REQUESTS.as_dicts(),
                meta["name"],
                {"status": {"conditions": conditions}},
                "tessera-system",
                subresource="status",
            )
        await lab.clock.sleep(10)


def test_from_zero_nodes_as_many_come_as_the_waiting_pods_need(with_new_nodes: Play) -> None:
    """3 x 3g and 20 x 1g: a 3g leaves room for four 1g beside it, seven 1g fill a card; so five cards, three nodes."""

    async def scenario(lab: Nodes) -> None:
        async with autoscaled(lab) as scaler:
            names = [f"three-{n}" for n in range(3)] + [f"one-{n}" for n in range(20)]
            for name in names:
                await lab.create(name, {THREE if name.startswith("three") else ONE: 1})
            await lab.running(*names)
            assert made(scaler) == 3
            assert len(lab.cluster.nodes) == 4
            await lab.clock.sleep(1200)
            assert (made(scaler), await placeholders(lab)) == (3, [])
            (event, *others) = lab.events_of("one-0", "NewNodeRequested")
            assert not others
            assert "asked the autoscaler for 3 new nodes of group pairs" in event.message

    with_new_nodes(scenario, drivers=False)


def test_a_group_that_has_nodes_grows_by_placeholders_that_exclude_them(with_new_nodes: Play) -> None:
    """An autoscaler copies a present node, which offers no whole cards; so each asks for a node of its own."""

    async def scenario(lab: Nodes) -> None:
        async with autoscaled(lab) as scaler:
            await lab.create("first", {SEVEN: 1})
            await lab.running("first")
            await lab.create("small", {ONE: 6})
            await lab.running("small")
            assert made(scaler) == 1
            for n in range(3):
                await lab.create(f"more-{n}", {SEVEN: 1})
            await lab.clock.sleep(30)
            found = await placeholders(lab)
            assert len(found) == 2
            assert not any("nvidia.com/gpu" in pod.spec.containers[0].resources.limits for pod in found)
            assert {pod.spec.node_name for pod in found} == {""}
            await lab.running("more-0", "more-1", "more-2")
            await lab.clock.sleep(1200)
            assert (made(scaler), await placeholders(lab)) == (3, [])

    with_new_nodes(scenario, drivers=False)


@pytest.mark.soak
def test_a_pod_that_no_machine_can_take_makes_no_node_and_keeps_none_from_others(with_new_nodes: Play) -> None:
    """It was asked for a new node each time that the last one had been removed for being of no use."""

    async def scenario(lab: Nodes) -> None:
        async with autoscaled(lab, unneeded=120) as scaler:
            await lab.create("cpu", {ONE: 1, "cpu": 5000})
            await lab.clock.sleep(3600)
            assert (made(scaler), len(await placeholders(lab))) == (0, 1)
            await lab.create("honest", {SEVEN: 1, "cpu": 2})
            await lab.running("honest")
            await lab.create("fpga", {ONE: 1, "example.com/fpga": 1})
            await lab.delete("honest")
            await lab.clock.sleep(2 * 3600)
            assert (made(scaler), await placeholders(lab)) == (1, [])
            assert len(lab.cluster.nodes) == 1, "the new one was idle, and was removed"

    with_new_nodes(scenario, drivers=False)


def test_a_placeholder_stands_for_a_node_and_goes_with_the_pod(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        async with autoscaled(lab, GROUPS + "    allocatable: {cpu: 4}\n"):
            for n in range(3):
                await lab.create(f"p{n}", {SEVEN: 1, "cpu": 3})
            await lab.clock.sleep(20)
            (answer,) = (await explain(lab.client, lab.clock, parse_query("p0"), "default")).answers
            assert any(
                "a new node was asked for: event NewNodeRequested" in fact and "3 new nodes of group pairs" in fact
                for fact in answer.facts
            )
            await lab.create("elsewhere", {ONE: 1}, nodeSelector={"pool": "other"})
            await lab.clock.sleep(60)
            found = await placeholders(lab)
            assert [pod.metadata.name for pod in found] == [f"tessera-new-node-pairs-{n}" for n in range(3)]
            assert Counter(pod.spec.containers[0].resources.limits["nvidia.com/gpu"] for pod in found) == {"2": 3}
            assert all(not pod.spec.node_name and pod.spec.node_selector == {"pool": "pairs"} for pod in found)
            assert not lab.events_of("elsewhere", "NewNodeRequested")
            await lab.delete("p0")
            await lab.clock.sleep(60)
            assert len(await placeholders(lab)) == 2
            await lab.client.delete(CONFIGMAPS, "tessera-node-groups", "tessera-system")
            await lab.clock.sleep(60)
            assert await placeholders(lab) == []

    with_new_nodes(scenario, drivers=False)


def test_a_restarted_controller_asks_for_no_second_node(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        async with autoscaled(lab) as scaler:
            await lab.create("p", {SEVEN: 2})
            await lab.until(lambda: made(scaler), "a node is asked for")
            await lab.kill()
            await lab.running("p")
            await lab.clock.sleep(1200)
            assert (made(scaler), await placeholders(lab)) == (1, [])

    with_new_nodes(scenario, drivers=False)


def test_what_no_new_node_could_hold_asks_for_none(with_new_nodes: Play) -> None:
    """Pods that come before the groups are known wait; later ones are refused."""

    async def scenario(lab: Nodes) -> None:
        await lab.create("huge", {SEVEN: 3})
        await lab.create("foreign", {"nvidia.com/mig-7g.80gb": 1})
        async with autoscaled(lab) as scaler:
            await lab.clock.sleep(900)  # the present node is known to have no cards
            assert (made(scaler), await placeholders(lab)) == (0, [])
            with pytest.raises(ApiError, match=r"group pairs, with 2 cards A100-40GB, holds 2 x 7g.40gb:"):
                await lab.create("late", {SEVEN: 3})
            with pytest.raises(ApiError, match="holds none of them"):
                await lab.create("strange", {"nvidia.com/mig-7g.80gb": 1})

    with_new_nodes(scenario, drivers=False)


def test_where_provisioning_requests_are_taken_they_replace_placeholders(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        await lab.client.create(CRDS.as_dicts(), REQUESTS_CRD)
        async with autoscaled(lab) as scaler:
            taking = asyncio.create_task(take_requests(lab, scaler))
            names = [f"p{n}" for n in range(5)]
            for name in names:
                await lab.create(name, {SEVEN: 1})
            await lab.until(lambda: len(lab.events_of("p0", "NewNodeRequested")), "nodes are asked for")
            assert await placeholders(lab) == []
            await lab.running(*names)
            await lab.clock.sleep(60)
            assert len(lab.cluster.nodes) == 4
            assert await requests(lab) == []
            templates = await lab.client.list(POD_TEMPLATES, "tessera-system")
            assert not templates.items
            await lab.clock.sleep(1200)
            assert (made(scaler), len(lab.cluster.nodes), await placeholders(lab)) == (0, 4, [])
            taking.cancel()

    with_new_nodes(scenario, drivers=False)


@pytest.mark.parametrize(
    ("groups", "first", "later"),
    [
        pytest.param(WHOLE, ({GPU: 2}, {GPU: 2}, {GPU: 1}, {GPU: 1}), ({GPU: 1},), id="whole", marks=pytest.mark.soak),
        pytest.param(SHARES, ({SHARE: 1},) * 17, ({SHARE: 1},) * 8, id="shares", marks=pytest.mark.soak),
    ],
)
def test_provisioning_requests_bring_nodes_with_whole_cards_and_shares_from_zero_and_none_too_many(
    with_new_nodes: Play, groups: str, first: Sequence[dict[str, int]], later: Sequence[dict[str, int]]
) -> None:
    """Two cards are a node, or eight shares. Three nodes are full, or have room for seven; then one more is needed."""

    async def scenario(lab: Nodes) -> None:
        labels = {"tessera.dev/placement": "managed"}
        await lab.client.merge_patch(NAMESPACES, "default", {"metadata": {"labels": labels}})
        await lab.client.create(CRDS.as_dicts(), REQUESTS_CRD)
        async with autoscaled(lab, groups) as scaler:
            taking = asyncio.create_task(take_requests(lab, scaler))
            for nodes, limits in ((3, first), (4, later)):
                names = [f"p{nodes}-{number}" for number in range(len(limits))]
                for name, each in zip(names, limits, strict=True):
                    await lab.create(name, each)
                await lab.running(*names)
                await lab.clock.sleep(1200)
                assert len(lab.cluster.nodes) == 1 + nodes
                assert (made(scaler), await requests(lab), await placeholders(lab)) == (0, [], [])
                assert not (await lab.client.list(POD_TEMPLATES, "tessera-system")).items
            (event,) = lab.events_of("p3-0", "NewNodeRequested")
            assert "3 new nodes of group pairs; the pod waits for cards" in event.message
            taking.cancel()

    with_new_nodes(scenario, drivers=False)


def test_requests_that_nobody_accepts_give_way_to_placeholders(with_new_nodes: Play) -> None:
    """Karpenter takes none, and Cluster Autoscaler only with an option, although the kind is installed."""

    async def scenario(lab: Nodes) -> None:
        await lab.client.create(CRDS.as_dicts(), REQUESTS_CRD)
        async with autoscaled(lab) as scaler:
            for name in ("p0", "p1", "p2"):
                await lab.create(name, {SEVEN: 1})
            await lab.clock.sleep(60)
            assert (len(await requests(lab)), await placeholders(lab)) == (2, [])
            await lab.running("p0", "p1", "p2")
            assert (made(scaler), await requests(lab)) == (2, [])
            await lab.clock.sleep(60)
            assert await placeholders(lab) == []

    with_new_nodes(scenario, drivers=False)


@pytest.mark.soak
def test_whole_cards_of_managed_namespaces_come_from_zero_nodes_and_no_node_too_many(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        labels = {"tessera.dev/placement": "managed"}
        await lab.client.merge_patch(NAMESPACES, "default", {"metadata": {"labels": labels}})
        await lab.clock.sleep(900)  # the present node is known to have no cards
        async with autoscaled(lab, WHOLE) as scaler:
            with pytest.raises(ApiError, match="the largest, a new node of group pairs, holds 2 x nvidia"):
                await lab.create("three", {"nvidia.com/gpu": 3})
            names = [f"two-{n}" for n in range(2)] + [f"one-{n}" for n in range(2)]
            for name in names:
                await lab.create(name, {"nvidia.com/gpu": 2 if name.startswith("two") else 1})
            await lab.running(*names)
            assert made(scaler) == 3
            (event,) = lab.events_of("two-0", "NewNodeRequested")
            assert "3 new nodes of group pairs; the pod waits for cards" in event.message
            await lab.create("later", {"nvidia.com/gpu": 1})
            await lab.running("later")
            await lab.clock.sleep(1200)
            assert (made(scaler), await placeholders(lab)) == (4, [])

    with_new_nodes(scenario, drivers=False)
