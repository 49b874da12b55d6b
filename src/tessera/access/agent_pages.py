"""Gets the pages ``/usage`` of all agents through the API server.

Nothing that an agent says is trusted: a page is bounded, and a page about another node, one that cannot be read or a
refusal that other agents do not share, is a failure of its own node only.
"""

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from tessera.access.page_reader import AGENT_AUDIENCE, PageReader
from tessera.api.names import SYSTEM_NAMESPACE
from tessera.api.nodes.node_marks import AGENT_LABEL
from tessera.api.nodes.silence import NONE_SILENT, SilentNode, agents_by_node
from tessera.api.nodes.usage import AGENT_PORT, USAGE_PATH, NodeUsage
from tessera.kube.errors import ApiError, Forbidden, ServiceUnavailable
from tessera.kube.resources import Pod
from tessera.limits import NODE_CARDS, USAGE_LEASES, USAGE_PAGE
from tessera.text import age

#: Pages that are fetched at the same time.
_PARALLEL = 16
#: Seconds after which a sample is no answer any more: agents take one each 10 s.
STALE = 60.0
#: In the message of an API server that reached no port of the pod (Go's net.OpError); a TLS error does not have it.
_NO_CONNECTION = "dial tcp"


class FleetUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The pages of all agents at one time.

    Attributes:
        nodes: the nodes that answered, by name.
        failures: the nodes that should have answered and did not, by name.
    """

    nodes: tuple[NodeUsage, ...] = ()
    failures: tuple[SilentNode, ...] = ()


async def read_fleet(
    reader: PageReader, pods: Iterable[Pod], silent: Mapping[str, SilentNode] = NONE_SILENT
) -> FleetUsage:
    """Gets the pages of the agents among these pods.

    Args:
        reader: reads pages as the user.
        pods: pods with the agents' among them.
        silent: the nodes that should answer and do not, as far as the API server knows. Those
            whose agent runs are asked: their page may have cards, and is an answer then. The others are not, since each
            could cost a time-out.

    Raises:
        Forbidden: the user may read none of them.
    """
    limit = asyncio.Semaphore(_PARALLEL)

    refusals: list[Forbidden] = []

    async def read(pod: Pod) -> NodeUsage | SilentNode:
        async with limit:
            try:
                return await _read_page(reader, pod)
            except Forbidden as error:
                refusals.append(error)
                return SilentNode(node=pod.spec.node_name, reason=f"its page may not be read: {error.message}")

    asked = {name: agents for name, agents in agents_by_node(pods).items() if name not in silent or silent[name].speaks}
    failed: dict[str, SilentNode] = {}
    answers: dict[str, NodeUsage] = {}
    found = await asyncio.gather(*(read(pod) for agents in asked.values() for pod in agents))
    if refusals and len(refusals) == len(found):
        raise refusals[0]
    for each in found:
        if isinstance(each, SilentNode):
            failed[each.node] = each
        elif each.node not in answers or each.cards:  # of two agents in an upgrade, one has the cards
            answers[each.node] = each
    told = {name for name, page in answers.items() if page.cards or name not in silent}
    return FleetUsage(
        nodes=tuple(page for name, page in sorted(answers.items()) if name in told),
        failures=tuple(each for name, each in sorted({**failed, **silent}.items()) if name not in told),
    )


async def _read_page(reader: PageReader, pod: Pod) -> NodeUsage | SilentNode:
    node, metadata = pod.spec.node_name, pod.metadata
    try:
        answer = await reader.get(metadata.namespace, metadata.name, AGENT_PORT, USAGE_PATH, AGENT_AUDIENCE)
    except Forbidden:
        raise
    except (ApiError, OSError) as error:
        if isinstance(error, ServiceUnavailable) and _NO_CONNECTION in str(error):
            return _unreachable(pod)
        return SilentNode(node=node, reason=f"its agent {metadata.name} does not answer: {error}")
    if len(answer.body) > USAGE_PAGE:
        return SilentNode(node=node, reason=f"the page of its agent is too large; read are {USAGE_PAGE}")
    try:
        usage = msgspec.json.decode(answer.body, type=NodeUsage)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return SilentNode(node=node, reason=f"the page of its agent cannot be read: {error}")
    return _check(usage, node)


def _unreachable(pod: Pod) -> SilentNode:
    """The agent's port took no connection: it is not ready, or something between API server and node refuses it."""
    node, metadata = pod.spec.node_name, pod.metadata
    if pod.status.is_ready:
        return SilentNode(
            node=node,
            reason=f"its agent is ready, and the API server cannot reach port {AGENT_PORT} of pod {metadata.name}",
            next=f"if node {node} reboots, wait; else open TCP {AGENT_PORT} from the control plane to the pod:"
            f" NetworkPolicies of {metadata.namespace}, firewalls of the nodes",
        )
    look = f"look at its state with: kubectl -n {metadata.namespace} get pods -o wide"
    return SilentNode(node=node, reason=f"its agent's pod {metadata.name} does not accept connections; {look}")


def _check(usage: NodeUsage, node: str) -> NodeUsage | SilentNode:
    if usage.node != node:
        return SilentNode(node=node, reason=f"its agent reports about another node, {usage.node!r}")
    if usage.age > STALE:
        return SilentNode(
            node=node,
            reason=f"its agent has not read the cards for {age(usage.age)}, and serves what it read then",
            next=f"read its log: kubectl logs -n {SYSTEM_NAMESPACE} -l {'='.join(AGENT_LABEL)} --prefix; if the driver"
            f" hangs, drain and reboot {node}",
        )
    if len(usage.cards) > NODE_CARDS or len(usage.leases) > USAGE_LEASES:
        found = f"{len(usage.cards):,} cards and {len(usage.leases):,} leases"
        return SilentNode(node=node, reason=f"its agent reports {found}; read are {NODE_CARDS}, and {USAGE_LEASES}")
    return usage
