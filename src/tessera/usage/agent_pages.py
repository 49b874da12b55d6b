"""Gets the pages ``/usage`` of all agents through the API server, as ``kubectl get --raw`` would.

The API server's proxy asks for the right ``get pods/proxy`` in Tessera's namespace. Nothing that an agent says is
trusted: a page is bounded, and a page about another node, or one that cannot be read, is a failure of its own node
only.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from tessera.api.nodes.agent_pod import is_agent
from tessera.api.nodes.usage import AGENT_PORT, USAGE_PATH, NodeUsage
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, Forbidden, ServiceUnavailable
from tessera.kube.resources import PODS, Pod
from tessera.limits.nodes import NODE_CARDS, USAGE_LEASES, USAGE_PAGE

#: Pages that are fetched at the same time.
_PARALLEL = 16
#: In the message of an API server that reached no port of the pod (Go's net.OpError); a TLS error does not have it.
_NO_CONNECTION = "dial tcp"


class NodeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose page could not be read; ``reason`` says why."""

    node: str
    reason: str


class FleetUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The pages of all agents at one time.

    Attributes:
        nodes: the nodes that answered, by name.
        failures: the other ones, by name.
    """

    nodes: tuple[NodeUsage, ...] = ()
    failures: tuple[NodeFailure, ...] = ()


async def read_fleet(client: Client, agents: Iterable[Pod]) -> FleetUsage:
    """Gets the pages of these pods; pods that are no agents are left out.

    Raises:
        Forbidden: the user may not use the proxy of any of them.
    """
    limit = asyncio.Semaphore(_PARALLEL)

    async def read(pod: Pod) -> NodeUsage | NodeFailure:
        async with limit:
            return await _read_page(client, pod)

    placed = sorted((pod for pod in agents if is_agent(pod) and pod.spec.node_name), key=lambda pod: pod.spec.node_name)
    found = await asyncio.gather(*map(read, placed))
    return FleetUsage(
        nodes=tuple(each for each in found if isinstance(each, NodeUsage)),
        failures=tuple(each for each in found if isinstance(each, NodeFailure)),
    )


async def _read_page(client: Client, pod: Pod) -> NodeUsage | NodeFailure:
    node, metadata = pod.spec.node_name, pod.metadata
    path = PODS.path(metadata.namespace, f"{metadata.name}:{AGENT_PORT}", f"proxy{USAGE_PATH}")
    try:
        answer = await client.request("GET", path)
    except Forbidden:
        raise
    except (ApiError, OSError) as error:
        if isinstance(error, ServiceUnavailable) and _NO_CONNECTION in str(error):
            look = f"look at its state with: kubectl -n {metadata.namespace} get pods -o wide"
            return NodeFailure(node=node, reason=f"its agent's pod {metadata.name} does not accept connections; {look}")
        return NodeFailure(node=node, reason=f"its agent {metadata.name} does not answer: {error}")
    if len(answer.body) > USAGE_PAGE:
        return NodeFailure(node=node, reason=f"the page of its agent is too large; read are {USAGE_PAGE}")
    try:
        usage = msgspec.json.decode(answer.body, type=NodeUsage)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return NodeFailure(node=node, reason=f"the page of its agent cannot be read: {error}")
    return _check(usage, node)


def _check(usage: NodeUsage, node: str) -> NodeUsage | NodeFailure:
    if usage.node != node:
        return NodeFailure(node=node, reason=f"its agent reports about another node, {usage.node!r}")
    if len(usage.cards) > NODE_CARDS or len(usage.leases) > USAGE_LEASES:
        found = f"{len(usage.cards):,} cards and {len(usage.leases):,} leases"
        return NodeFailure(node=node, reason=f"its agent reports {found}; read are {NODE_CARDS}, and {USAGE_LEASES}")
    return usage
