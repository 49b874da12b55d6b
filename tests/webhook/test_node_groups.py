"""A replica that does not know the groups of new nodes, or a new node, refuses no pod that one might hold."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.support.mortal_transport import ForwardingTransport
from tests.webhook.conftest import NAMESPACE, Lab
from tests.webhook.test_impossible_requests import SMALL, ask
from tests.webhook.test_process import review

from tessera.kube.requests import Request, Response, Transport
from tessera.kube.resources import CONFIGMAPS, NODES
from tessera.webhook.base import MANAGED_PATH
from tessera.webhook.capabilities import GpuNode
from tessera.webhook.main import WebhookReplica

NAME = "tessera-node-groups"
GROUP = "groups: [{name: large, selector: {pool: a}, cards: {model: A100-40GB, count: 8}}]"
#: More than the card of the present node has, and what a node of the group has.
LARGE = ask({"1g.5gb": 56})
#: More than a node of the group has.
TOO_LARGE = ask({"1g.5gb": 57})
#: More than the node with whole cards has.
GPUS = {"nvidia.com/gpu": "8"}


class ListedBy(ForwardingTransport):
    """Lists ConfigMaps once ``open`` is set; ``refused`` has the API server answer that the right is missing."""

    def __init__(self, inner: Transport, *, refused: bool = False) -> None:
        super().__init__(inner)
        self.open = asyncio.Event()
        self._refused = refused

    async def request(self, request: Request) -> Response:
        if "/configmaps" in request.path:
            if self._refused:
                status = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403}
                return Response(status=403, headers={}, body=msgspec.json.encode(status))
            await self.open.wait()
        return await super().request(request)


def admits(webhook: WebhookReplica, pod: dict[str, Any]) -> bool:
    return bool(msgspec.json.decode(webhook.review(review(pod)))["response"]["allowed"])


@contextlib.asynccontextmanager
async def replica(lab: Lab, **way: Any) -> AsyncIterator[WebhookReplica]:
    """A replica that is ready but for the groups, in a cluster with one node."""
    await lab.configure()
    async with lab.replica(**way) as webhook:
        webhook.capabilities.put(SMALL)
        await lab.clock.sleep(5)
        yield webhook


async def write_groups(lab: Lab, text: str) -> None:
    await lab.client.create(CONFIGMAPS, {"metadata": {"name": NAME}, "data": {"groups.yaml": text}}, NAMESPACE)


async def change_groups(lab: Lab, text: str) -> None:
    await lab.client.merge_patch(CONFIGMAPS, NAME, {"data": {"groups.yaml": text}}, NAMESPACE)
    await lab.clock.sleep(1)


async def test_a_replica_is_not_ready_before_the_groups_are_listed_and_refuses_nothing_by_them(lab: Lab) -> None:
    await write_groups(lab, GROUP)
    ways: list[ListedBy] = []

    def way(inner: Transport) -> Transport:
        ways.append(ListedBy(inner))
        return ways[0]

    async with replica(lab, way=way) as webhook:
        assert webhook.unready_reason() == "the ConfigMap tessera-node-groups is not listed yet"
        assert (admits(webhook, LARGE), admits(webhook, TOO_LARGE)) == (True, True)
        ways[0].open.set()
        await lab.clock.sleep(5)
        assert webhook.unready_reason() == ""
        assert (admits(webhook, LARGE), admits(webhook, TOO_LARGE)) == (True, False)


async def test_without_the_right_to_read_the_groups_a_replica_is_ready_and_allows_for_any(lab: Lab) -> None:
    async with replica(lab, way=lambda inner: ListedBy(inner, refused=True)) as webhook:
        assert webhook.unready_reason() == ""
        assert admits(webhook, TOO_LARGE)


async def test_without_the_file_there_are_no_groups(lab: Lab) -> None:
    async with replica(lab) as webhook:
        assert webhook.unready_reason() == ""
        assert not admits(webhook, LARGE)


async def test_a_mistake_in_the_file_takes_no_admission_away(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    await write_groups(lab, GROUP)
    async with replica(lab) as webhook:
        assert (admits(webhook, LARGE), admits(webhook, TOO_LARGE)) == (True, False)
        await change_groups(lab, GROUP.replace("A100-40GB", "A1000"))
        assert (admits(webhook, LARGE), admits(webhook, TOO_LARGE)) == (True, True)
        assert "until then pods for any new nodes are admitted" in caplog.text
        for mistake in ("selector: {a b: a}", "selector: {pool: a}, labels: {pool: b}"):
            await change_groups(lab, GROUP)
            assert not admits(webhook, TOO_LARGE)
            await change_groups(lab, GROUP.replace("selector: {pool: a}", mistake))
            assert admits(webhook, TOO_LARGE)
        await change_groups(lab, GROUP)
        assert (admits(webhook, LARGE), admits(webhook, TOO_LARGE)) == (True, False)
        await lab.client.delete(CONFIGMAPS, NAME, NAMESPACE)
        await lab.clock.sleep(1)
        assert not admits(webhook, LARGE)


async def test_a_replica_that_starts_with_a_mistake_in_the_file_is_ready_and_allows_for_any(lab: Lab) -> None:
    await write_groups(lab, "groups: 5")
    async with replica(lab) as webhook:
        assert webhook.unready_reason() == ""
        assert admits(webhook, TOO_LARGE)


async def test_a_node_that_has_just_joined_counts_as_unread_for_a_while(lab: Lab) -> None:
    """Nobody has labelled it; for slices and for whole cards of managed namespaces."""
    async with replica(lab) as webhook:
        cards = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": {"limits": GPUS}}]}}
        webhook.capabilities.put(GpuNode(name="four", devices=(("nvidia.com/gpu", 4),)))

        def admitted() -> tuple[bool, bool]:
            answer = msgspec.json.decode(webhook.review(review(cards), MANAGED_PATH))
            return admits(webhook, LARGE), answer["response"]["allowed"]

        assert admitted() == (False, False)
        await lab.client.create(NODES, {"metadata": {"name": "new"}})
        await lab.clock.sleep(1)
        assert admitted() == (True, True)
        await lab.clock.sleep(880)
        assert admitted() == (True, True)
        await lab.clock.sleep(30)
        assert admitted() == (False, False)
