"""The events of a pod on the page: the visitor's own token asks, and never the page's account instead."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.kube.conftest import ImpatientClock, ScriptedServer

from tessera.dashboard.explainer import PodEvents
from tessera.kube.client import Client
from tessera.kube.cluster_config import ClusterConfig
from tessera.kube.credentials import Credential, StaticCredentials
from tessera.kube.errors import Forbidden
from tessera.kube.http import HttpTransport

OWN = "Bearer the-page"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    found = ScriptedServer()
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
def clock() -> ImpatientClock:
    return ImpatientClock()


def client_of(server: ScriptedServer, clock: ImpatientClock) -> Client:
    config = ClusterConfig(server=server.url, credentials=StaticCredentials(Credential(authorization=OWN)))
    return Client(HttpTransport(config), field_manager="page", clock=clock)


def event(reason: str, last: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": reason.lower(), "namespace": "team"}
    return {"metadata": metadata, "reason": reason, "type": "Normal", "message": "text", "lastTimestamp": last, **more}


async def test_the_newest_events_come_first_by_the_visitors_token(
    server: ScriptedServer, clock: ImpatientClock
) -> None:
    items = [event("Scheduled", "2026-01-01T10:00:00Z"), event("Pulled", "2026-01-01T10:05:00Z", count=3)]
    server.answers({"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": items})
    client = client_of(server, clock)
    found = await PodEvents(client, own_account=False).read("team", "web-0", "Bearer hers")
    assert found is not None
    assert [(each.reason, each.count) for each in found] == [("Pulled", 3), ("Scheduled", 1)]
    (call,) = server.calls
    assert (call.path, call.headers["authorization"]) == ("/api/v1/namespaces/team/events", "Bearer hers")
    assert call.query["fieldSelector"] == "involvedObject.kind=Pod,involvedObject.name=web-0"
    await client.close()


async def test_the_events_of_a_node_are_in_the_namespace_default(server: ScriptedServer, clock: ImpatientClock) -> None:
    server.answers({"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": []})
    client = client_of(server, clock)
    assert await PodEvents(client, own_account=False).read("-", "gpu-1", "Bearer hers") == []
    (call,) = server.calls
    assert call.path == "/api/v1/namespaces/default/events"
    assert call.query["fieldSelector"] == "involvedObject.kind=Node,involvedObject.name=gpu-1"
    await client.close()


@pytest.mark.parametrize(
    ("namespace", "pod", "authorization"),
    [("team", "web-0", None), ("team/x", "web-0", "Bearer hers"), ("team", "a,type=Warning", "Bearer hers")],
)
async def test_without_a_token_or_with_other_names_nothing_is_asked(
    server: ScriptedServer, clock: ImpatientClock, namespace: str, pod: str, authorization: str | None
) -> None:
    client = client_of(server, clock)
    assert await PodEvents(client, own_account=False).read(namespace, pod, authorization) is None
    assert server.calls == []
    await client.close()


async def test_a_refusal_is_that_of_the_api_server(server: ScriptedServer, clock: ImpatientClock) -> None:
    server.refuses(403, "Forbidden", 'events is forbidden: User "hers" cannot list resource "events"')
    client = client_of(server, clock)
    with pytest.raises(Forbidden, match='User "hers" cannot list'):
        await PodEvents(client, own_account=False).read("team", "web-0", "Bearer hers")
    await client.close()


async def test_the_page_on_a_laptop_asks_as_its_user(server: ScriptedServer, clock: ImpatientClock) -> None:
    server.answers({"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": []})
    client = client_of(server, clock)
    assert await PodEvents(client, own_account=True).read("team", "web-0", None) == []
    assert server.calls[0].headers["authorization"] == OWN
    await client.close()
