"""Reading of the agents' pages: one bad agent spoils its own node only, and nothing that it says is trusted."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.observe.conftest import AgentCluster, card, lease
from tests.support.api_user import ManualClock, pod
from tests.support.partly_down import PartlyDownTransport

from tessera.access.agent_pages import STALE
from tessera.api.instaslice import KIND_MISSING
from tessera.api.nodes.silence import Silence
from tessera.api.nodes.usage import NodeUsage
from tessera.cli.base.usage import notes_of
from tessera.dashboard.view.cluster_map import make_map
from tessera.explain.explanation import Query
from tessera.explain.query import explain
from tessera.forecast.queue_page import QueuePage
from tessera.kube.client import Client
from tessera.kube.errors import Forbidden, InternalError, NotFound
from tessera.limits import NODE_CARDS, USAGE_LEASES, USAGE_PAGE
from tessera.observe.cluster_reading import read_cluster
from tessera.observe.queue_reading import read_queue
from tessera.observe.reading import read_usage
from tessera_lab.apiserver.interfaces import Attributes, AuthorizationDecision, Obj, UserInfo
from tessera_lab.cluster.cluster import ADMIN

GOOD = NodeUsage(node="n1", cards=(card(gpu_utilization=0.5),), leases=(lease("a"),))


async def test_pages_of_all_nodes_are_joined_in_the_order_of_names(cluster: AgentCluster) -> None:
    await cluster.begin()
    await cluster.add_agent("n2", NodeUsage(node="n2", cards=(card("GPU-2"),)))
    await cluster.add_agent("n1", GOOD)
    usage = await read_usage(cluster.client())
    assert [(row.node, row.uuid, row.pods) for row in usage.cards] == [("n1", "GPU-1", 1), ("n2", "GPU-2", 0)]
    assert [(row.key, row.card) for row in usage.leases] == [("team/a", 0)]
    assert usage.fleet.failures == ()


async def test_a_cluster_without_tessera_lacks_the_kind_and_nothing_is_unread(cluster: AgentCluster) -> None:
    await cluster.begin(kind=False)
    await cluster.api("POST", "/api/v1/namespaces/tessera-system/pods", pod("plain", nodeName="n1"))
    client = cluster.client()
    assert (await explain(client, ManualClock(), Query("pod", "plain"), "tessera-system")).unread == ""
    assert (await read_usage(client, partly=True)).unread == ""
    with pytest.raises(NotFound):
        await read_cluster(client, partly=True)


async def test_a_controller_that_cannot_begin_without_the_kind_is_told_so(cluster: AgentCluster) -> None:
    await cluster.begin(kind=False)
    await cluster.add_controller(QueuePage(leads=False))
    assert await read_queue(cluster.client()) == f"no controller leads at this moment: {KIND_MISSING}"
    await cluster.add_kind()
    assert await read_queue(cluster.client()) == "no controller leads at this moment"


async def test_with_an_agent_the_missing_kind_is_unread(cluster: AgentCluster) -> None:
    await cluster.begin(kind=False)
    await cluster.add_agent("n1", GOOD)
    found = make_map(await read_cluster(cluster.client(), partly=True))
    assert [len(each.cards) for each in found.nodes] == [1]
    assert found.note == f"instaslices could not be read: {KIND_MISSING}"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (
            ConnectionRefusedError(111, "refused"),
            "does not accept connections; look at its state with: kubectl -n tessera-system get pods -o wide",
        ),
        (b"{", "cannot be read"),
        (b'{"cards": 5}', "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"taken": ' + b"[" * 100_000, "cannot be read"),
        (b'{"other": ' + b"[" * 100_000, "cannot be read"),
        (b'{"node": "\xff"}', "can't decode byte 0xff"),
        (b" " * (USAGE_PAGE + 1), "8,388,608 bytes"),
        (NodeUsage(node="n1"), "another node, 'n1'"),
        (NodeUsage(node="bad", cards=(card(),), age=STALE + 60), "has not read the cards for 2m, and serves what it"),
        (
            NodeUsage(node="bad", cards=tuple(card(f"GPU-{n}") for n in range(NODE_CARDS + 1))),
            "65 cards and 0 leases; read are at most 64 cards",
        ),
        (NodeUsage(node="bad", leases=tuple(lease(f"p{n}") for n in range(USAGE_LEASES + 1))), "10,001 leases"),
    ],
    ids=[
        "refused",
        "cut",
        "wrong type",
        "deep",
        "deep value",
        "deep surplus",
        "no text",
        "large",
        "other node",
        "frozen",
        "many cards",
        "many leases",
    ],
)
async def test_a_bad_page_is_a_failure_of_its_own_node(
    cluster: AgentCluster, page: NodeUsage | bytes | Exception, words: str
) -> None:
    await cluster.begin()
    await cluster.add_agent("bad", page)
    await cluster.add_agent("n1", GOOD)
    usage = await read_usage(cluster.client())
    assert [row.node for row in usage.cards] == ["n1"]
    (failure,) = usage.fleet.failures
    assert failure.node == "bad"
    assert words in failure.reason


async def test_a_ready_agent_whose_page_nobody_reaches_is_a_matter_of_the_network(cluster: AgentCluster) -> None:
    await cluster.begin()
    await cluster.add_agent("n1", ConnectionRefusedError(111, "refused"), ready=True)
    (failure,) = (await read_usage(cluster.client())).fleet.failures
    assert failure.kind is Silence.UNREACHABLE
    assert failure.reason == "its agent is ready, and the API server cannot reach port 8082 of pod agent-n1"
    assert "open TCP 8082 from the control plane" in failure.next


async def test_a_node_that_is_known_to_be_silent_is_not_asked(cluster: AgentCluster) -> None:
    await cluster.begin()
    await cluster.add_agent("n1", AssertionError("not to be read"))
    await cluster.api("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
    (failure,) = (await read_usage(cluster.client())).fleet.failures
    assert (failure.node, failure.kind) == ("n1", Silence.NODE_NOT_READY)


@pytest.mark.parametrize(
    ("card_of", "words"),
    [
        ({"replicas": 0}, ">= 1 - at `$.cards[0].replicas`"),
        ({"replicas": 2**62}, "<= 32768"),
        ({"slots": 2**62}, "<= 32"),
        ({"index": -1}, ">= 0 - at `$.cards[0].index`"),
        ({"values": {"power": 1e308}}, "<= 1e+18"),
        ({"model": "x" * 254}, "length <= 253"),
        ({"throttled": ["x"] * 129}, "length <= 128"),
        ({"devices": [{"uuid": "MIG-1", "size": 2**62}]}, "$.cards[0].devices[0].size"),
        ({"devices": [{"uuid": "MIG-1", "share": 1e308}]}, "<= 1.0"),
        ({"devices": [{"uuid": f"MIG-{n}"} for n in range(33)]}, "length <= 32"),
        ({"health": {"next": "x" * 2_001}}, "length <= 2000"),
        ({"health": {"since": -1e300}}, "$.cards[0].health.since"),
    ],
    ids=lambda each: ",".join(each) if isinstance(each, dict) else None,
)
async def test_a_number_or_text_beyond_its_bound_makes_the_page_a_failure(
    cluster: AgentCluster, card_of: dict[str, Any], words: str
) -> None:
    await cluster.begin()
    await cluster.add_agent("bad", msgspec.json.encode({"node": "bad", "cards": [{"uuid": "GPU-1", **card_of}]}))
    usage = await read_usage(cluster.client())
    (failure,) = usage.fleet.failures
    assert words in failure.reason


async def test_a_pod_that_only_has_the_label_is_not_asked(cluster: AgentCluster) -> None:
    await cluster.begin()
    await cluster.add_agent("n1", GOOD, owned=False)
    usage = await read_usage(cluster.client())
    assert (usage.cards, usage.fleet.failures) == ([], ())


async def test_only_named_nodes_are_read(cluster: AgentCluster) -> None:
    await cluster.begin()
    await cluster.add_agent("n1", GOOD)
    await cluster.add_agent("n2", AssertionError("not to be read"))
    assert [row.node for row in (await read_usage(cluster.client(), ["n1"])).cards] == ["n1"]


class Except:
    """Allows everything but one resource."""

    def __init__(self, resource: str, subresource: str, namespace: str | None) -> None:
        self._refused = resource, subresource
        self._namespace = namespace

    def authorize(self, attributes: Attributes) -> AuthorizationDecision:
        refused = (attributes.resource, attributes.subresource) == self._refused
        allowed = not (refused and self._namespace in (None, attributes.namespace))
        return AuthorizationDecision(allowed=allowed)

    def rules(self, user: UserInfo, namespace: str) -> tuple[Sequence[Obj], Sequence[Obj]]:
        raise NotImplementedError


async def test_without_the_right_to_the_proxy_the_reading_is_refused(cluster: AgentCluster) -> None:
    await cluster.begin()
    await cluster.add_agent("n1", GOOD)
    cluster.server.parts.authorizer = Except("pods", "proxy", None)
    with pytest.raises(Forbidden, match="pods/proxy"):
        await read_usage(cluster.client(UserInfo(name="jane")))


@pytest.mark.parametrize("kind", ["nodes", "instaslices"])
async def test_what_the_api_server_does_not_answer_is_named_and_the_cards_are_shown(
    cluster: AgentCluster, kind: str
) -> None:
    await cluster.begin()
    await cluster.add_agent("n1", GOOD)
    transport = PartlyDownTransport(cluster.server, ADMIN)
    client = Client(transport, field_manager="test", clock=ManualClock())
    assert (await read_usage(client, partly=True)).unread == ""
    transport.down = kind
    usage = await read_usage(client, partly=True)
    assert [row.uuid for row in usage.cards] == ["GPU-1"]
    assert usage.unread.startswith(f"{kind} could not be read: ")
    (note,) = notes_of(usage)
    assert note == f"note: {usage.unread}", "and not that the user lacks a right"
    with pytest.raises(InternalError):
        await read_usage(client)


async def test_the_map_shows_what_the_pages_tell_while_records_cannot_be_read(cluster: AgentCluster) -> None:
    await cluster.begin()
    await cluster.add_agent("n1", GOOD)
    transport = PartlyDownTransport(cluster.server, ADMIN)
    transport.down = "instaslices"
    client = Client(transport, field_manager="test", clock=ManualClock())
    found = make_map(await read_cluster(client, partly=True))
    assert [(each.node, len(each.cards)) for each in found.nodes] == [("n1", 1)]
    assert found.note.startswith("instaslices could not be read: ")
