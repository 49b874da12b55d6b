"""The scheduler binds a refused pod at the very moment at which the controller takes its slices back.

The controller's request is held up while the reason of the refusal goes away and the scheduler binds the pod. Only then
the request is sent, with what the controller knew before. Whatever it was, the pod that is bound gets slices and runs,
and nothing is used twice.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.cluster.test_neighbours import replicas, run, template, unjudged
from tests.support.mortal_transport import ForwardingTransport
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.client import Client
from tessera.kube.requests import Request, Response, Transport
from tessera.kube.resources import PODS
from tessera_lab.cluster.cluster import SimulatedCluster
from tessera_lab.kubelet.context import ContainerContext

WHOLE = {"nvidia.com/mig-7g.40gb": 1}


class Moment:
    """Holds up the controller's first request of a kind until something has happened.

    Attributes:
        act: what happens meanwhile; None as long as no request is held up.
        came: such a request was held up.
    """

    def __init__(self, *words: str) -> None:
        self.act: Callable[[], Awaitable[None]] | None = None
        self.came = False
        self._words = words

    async def before(self, request: Request) -> None:
        """Called before each request of the controller."""
        text = f"{request.method} {request.path} {request.body.decode(errors='replace')}"
        if self.act is not None and not self.came and all(word in text for word in self._words):
            self.came = True
            await self.act()

    def cluster(self, *arguments: Any, **options: Any) -> SimulatedCluster:
        """A cluster whose controller it may hold up."""
        return _Held(self, *arguments, **options)


class _Held(SimulatedCluster):
    def __init__(self, moment: Moment, *arguments: Any, **options: Any) -> None:
        self._moment = moment
        super().__init__(*arguments, **options)

    async def container_client(self, context: ContainerContext) -> Client:
        client = await super().container_client(context)
        if context.argv[1] != "controller":
            return client
        return Client(_Wire(client._transport, self._moment), field_manager=client.field_manager, clock=self.clock)


class _Wire(ForwardingTransport):
    def __init__(self, inner: Transport, moment: Moment) -> None:
        super().__init__(inner)
        self._moment = moment

    async def request(self, request: Request) -> Response:
        await self._moment.before(request)
        return await self._inner.request(request)


async def hold(lab: VirtualLab) -> None:
    """A pod whose rules, unseen by the controller, keep all pods of the app ``refused`` off the node."""
    holder = template("holder", {}, affinity=unjudged())
    holder["metadata"]["name"] = "holder"
    await lab.client.create(PODS.as_dicts(), holder, "default")
    await lab.running("holder")


def let_go(lab: VirtualLab, name: Callable[[], str]) -> Callable[[], Awaitable[None]]:
    """Ends the refusal and returns once the scheduler has bound the pod."""

    async def act() -> None:
        await lab.client.delete(PODS, "holder", "default", grace_seconds=0)
        await lab.until(lambda: lab.node_of(name()), "the scheduler binds it")

    return act


@pytest.mark.parametrize(
    "words",
    [("PATCH", "/instaslices/", "podAllocationResults", "deleting"), ("PATCH", "/pods/first/status", "SliceReclaimed")],
    ids=["as the slices are given up", "as the pod is told"],
)
@pytest.mark.parametrize("wanted", [False, True], ids=["nobody else waits", "another waits for the place"])
def test_a_pod_without_an_owner_that_is_bound_just_then(in_lab: InLab, words: tuple[str, ...], wanted: bool) -> None:
    moment = Moment(*words)

    async def scenario(lab: VirtualLab) -> None:
        await hold(lab)
        body = template("refused", WHOLE)
        body["metadata"]["name"] = "first"
        await lab.client.create(PODS.as_dicts(), body, "default")
        await lab.until(lambda: lab.is_free("first"), "it was pinned")
        if wanted:
            await lab.create("second", WHOLE)
            await lab.until(lambda: lab.events_of("second", "SliceWaiting"), "another waits")
        moment.act = let_go(lab, lambda: "first")
        await lab.until(lambda: moment.came, "the slices are taken back", 300.0)
        await lab.until(lambda: any(lab.ready(name) for name in ("first", "second")), "one of them runs", 300.0)
        assert len(lab.hardware()) == 1
        runs, left = ("second", "first") if lab.ready("second") else ("first", "second")
        await lab.client.delete(PODS, runs, "default", grace_seconds=0)
        if wanted:
            await lab.until(lambda: lab.ready(left), "then the other one runs", 600.0)
            await lab.client.delete(PODS, left, "default", grace_seconds=0)
        await lab.empty()
        await lab.until(lambda: not lab.hardware(), "nothing is left on the card")

    in_lab(scenario, nodes="1xA100-40GB", cluster_type=moment.cluster)


def test_a_pod_that_is_bound_after_its_slices_went_to_the_next_makes_room_for_that(in_lab: InLab) -> None:
    """The scheduler counts the first pod on the node, and refuses the one that has the slices now."""

    async def scenario(lab: VirtualLab) -> None:
        await hold(lab)
        for name in ("late", "second"):
            body = template("refused", WHOLE)
            body["metadata"]["name"] = name
            await lab.client.create(PODS.as_dicts(), body, "default")
            await lab.until(lambda: lab.is_free("late"), "it was pinned")
        await lab.until(lambda: lab.events_of("late", "SliceReclaimed"), "its slices are taken back", 300.0)
        await lab.until(lambda: not lab.existing_pod("second").spec.scheduling_gates, "they go to the next")
        await let_go(lab, lambda: "late")()
        assert not lab.existing_pod("second").spec.node_name
        await lab.until(lambda: lab.ready("second"), "the next runs", 60.0)
        assert lab.pod("late") is None
        told = [each.message for each in lab.events_of("late", "SliceReclaimed")]
        assert any("there is no room for it now: it is deleted; create it again" in each for each in told)
        assert not lab.events_of("second", "SliceReclaimed")

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_pod_of_an_owner_that_is_bound_just_then_is_not_evicted(in_lab: InLab) -> None:
    moment = Moment("POST", "/eviction")

    async def scenario(lab: VirtualLab) -> None:
        await hold(lab)
        await replicas(lab, "refused", 1, WHOLE)

        def pods() -> list[str]:
            found = [pod for pod in lab.pods.cache.values() if pod.metadata.labels.get("app") == "refused"]
            return [pod.metadata.name for pod in found]

        await lab.until(lambda: len(pods()) == 1 and lab.is_free(pods()[0]), "it was pinned")
        (name,) = pods()
        moment.act = let_go(lab, lambda: name)
        await lab.until(lambda: moment.came, "the pod is evicted", 300.0)
        assert await run(lab, "refused", 1) == ["node-1"]
        assert pods() == [name]
        assert len(lab.hardware()) == 1

    in_lab(scenario, nodes="1xA100-40GB", cluster_type=moment.cluster)
