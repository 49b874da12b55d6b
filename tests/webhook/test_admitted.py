"""Pods created at an API server that asks the webhook as deploy/ has it: what nodes say, patches and refusals."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.webhook.conftest import Lab, in_lab

from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, encode_offers
from tessera.kube.errors import ApiError, Invalid
from tessera.kube.resources import NODES, PODS

GATE = {"name": "instaslice.redhat.com/accelerator"}
QUOTA = "instaslice.redhat.com/accelerator-memory-quota"
SLICE = NodeOffer(
    resource="nvidia.com/mig-2g.10gb",
    kind=OfferKind.SLICE,
    product="NVIDIA A100-SXM4-40GB",
    card_memory_mib=40960,
    memory_mib=9984,
    compute_capability="8.0",
    ecc=True,
    count=12,
    profile="2g.10gb",
)
ON_DEMAND = msgspec.structs.replace(SLICE, kind=OfferKind.DYNAMIC_SLICE)
SHARE = msgspec.structs.replace(
    SLICE,
    resource="nvidia.com/gpu.shared",
    kind=OfferKind.SHARE,
    memory_mib=8192,
    replicas=5,
    one_per_request=True,
    profile="",
)


class Cluster:
    """Creates nodes and pods, and records the pods that the webhook reviewed."""

    def __init__(self, lab: Lab, asked: list[str]) -> None:
        self._lab = lab
        self.asked = asked

    async def node(self, name: str, *offers: NodeOffer, text: str = "") -> None:
        """A node whose annotation says this."""
        annotations = {OFFERS_ANNOTATION: text or encode_offers(offers)}
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}, "annotations": annotations}
        await self._lab.client.create(NODES, {"metadata": metadata})
        await self._lab.clock.sleep(1)

    async def say(self, name: str, *offers: NodeOffer) -> None:
        """The node says something else."""
        patch = {"metadata": {"annotations": {OFFERS_ANNOTATION: encode_offers(offers)}}}
        await self._lab.client.merge_patch(NODES, name, patch)
        await self._lab.clock.sleep(1)

    async def pod(self, name: str, limits: dict[str, Any] | None = None, **needs: str) -> Any:
        """Creates a pod; returns it as it is stored."""
        annotations = {f"tessera.dev/{key.replace('_', '-')}": value for key, value in needs.items()}
        container = {"name": "c", "image": "i", "resources": {"limits": limits or {}}}
        body = {"metadata": {"name": name, "annotations": annotations}, "spec": {"containers": [container]}}
        return await self._lab.client.create(PODS.as_dicts(), body, "default")


def story(tell: Callable[[Cluster], Awaitable[None]]) -> None:
    """Plays a story at a server whose reviews reach a replica of the webhook."""

    async def play(lab: Lab) -> None:
        await lab.configure()
        asked: list[str] = []
        async with lab.replica() as webhook:

            def review(body: bytes) -> bytes:
                asked.append(msgspec.json.decode(body)["request"]["object"]["metadata"]["name"])
                return webhook.review(body)

            lab.answer_by(review)
            await lab.clock.sleep(5)
            await tell(Cluster(lab, asked))

    in_lab(play)


def test_pods_that_ask_for_no_gpu_are_never_sent() -> None:
    async def tell(cluster: Cluster) -> None:
        await cluster.pod("plain")
        await cluster.pod("cpu", {"cpu": 2})
        assert cluster.asked == []

    story(tell)


def test_a_requirement_becomes_a_slice_that_stands() -> None:
    async def tell(cluster: Cluster) -> None:
        await cluster.node("fixed", SLICE)
        await cluster.node("on-demand", ON_DEMAND)
        pod = await cluster.pod("p", gpu_memory="10Gi")
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-2g.10gb": "1"}
        assert "schedulingGates" not in pod["spec"]
        affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = affinity["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["fixed"]}]
        assert pod["metadata"]["annotations"]["tessera.dev/chosen-resource-reason"].startswith(
            "nvidia.com/mig-2g.10gb (MIG "
        )

    story(tell)


def test_a_requirement_becomes_a_slice_on_demand_that_is_gated_and_charged() -> None:
    async def tell(cluster: Cluster) -> None:
        await cluster.node("on-demand", ON_DEMAND)
        pod = await cluster.pod("p", gpu_memory="10Gi")
        wanted = {"nvidia.com/mig-2g.10gb": "1", QUOTA: "10Gi"}
        assert pod["spec"]["containers"][0]["resources"] == {"limits": wanted, "requests": wanted}
        assert pod["spec"]["schedulingGates"] == [GATE]
        assert set(cluster.asked) == {"p"}

    story(tell)


def test_a_pod_that_is_created_from_a_stored_one_is_decided_alike() -> None:
    async def tell(cluster: Cluster) -> None:
        await cluster.node("on-demand", ON_DEMAND)
        pod = await cluster.pod("p", gpu_memory="10Gi")
        again = await cluster.pod("again", pod["spec"]["containers"][0]["resources"]["limits"])
        assert again["spec"]["schedulingGates"] == pod["spec"]["schedulingGates"]
        assert again["spec"]["containers"][0]["resources"] == pod["spec"]["containers"][0]["resources"]

    story(tell)


async def refusal(creation: Awaitable[Any]) -> str:
    with pytest.raises(Invalid) as caught:
        await creation
    return str(caught.value)


def test_refusals_reach_the_author() -> None:
    async def tell(cluster: Cluster) -> None:
        await cluster.node("shared", SHARE)
        impossible = await refusal(cluster.pod("p", gpu_memory="10Gi"))
        for fact in (
            'webhook "gpus.tessera.dev" denied the request',
            "no GPU of the cluster fulfils memory 10Gi",
            "the most memory that one has is 8Gi",
        ):
            assert fact in impossible
        several = await refusal(cluster.pod("p", {"nvidia.com/gpu.shared": 3}))
        for fact in ('webhook "requests.tessera.dev" denied the request', 'container "c": ', "asks for 3"):
            assert fact in several
        misspelt = await refusal(cluster.pod("p", gpu_memroy="10Gi"))
        for fact in ("annotation tessera.dev/gpu-memroy: unknown", "did you mean tessera.dev/gpu-memory?"):
            assert fact in misspelt

    story(tell)


def test_what_a_node_says_counts_at_once() -> None:
    async def tell(cluster: Cluster) -> None:
        await cluster.node("n", text="no list")
        assert "the cluster offers no GPUs" in await refusal(cluster.pod("p", gpu_memory="10Gi"))
        await cluster.say("n", SLICE)
        await cluster.pod("p", gpu_memory="10Gi")
        await cluster.say("n", SHARE)
        await refusal(cluster.pod("q", gpu_memory="10Gi"))

    story(tell)


async def test_without_a_webhook_only_pods_that_need_it_are_kept_out(lab: Lab) -> None:
    await lab.configure()
    cluster = Cluster(lab, [])
    await cluster.pod("plain")
    await cluster.pod("several", {"nvidia.com/gpu": 2})
    for limits, needs in (({"nvidia.com/mig-1g.5gb": 1}, {}), ({}, {"ecc": "true"})):
        with pytest.raises(ApiError, match="failed calling webhook"):
            await cluster.pod("p", limits, **needs)
