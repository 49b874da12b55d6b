"""``tessera topo``: how the cards of a node or of a pod are joined, as ``nvidia-smi topo -m`` prints it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tessera.cli.base.connection import CommandError, cluster_options, own_namespace, report_errors
from tessera.cli.base.console import say, say_tabbed
from tessera.cli.base.grammar import Output, output_option, watch_option
from tessera.cli.base.live_picture import read_or_watch

if TYPE_CHECKING:
    from tessera.api.nodes.usage import NodeTopology
    from tessera.kube.client import Client

_KINDS = {"node": "node", "nodes": "node", "no": "node", "pod": "pod", "pods": "pod", "po": "pod"}


class _Found(NamedTuple):
    """The matrix of a node, or of a pod's cards on it; ``joined`` says in a sentence how these are joined."""

    kind: str
    name: str
    node: str
    topology: "NodeTopology"
    joined: str
    simulated: bool


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="NODE|POD|KIND/NAME")
@click.option("-n", "--namespace", metavar="NAME", help="The pod's namespace.  [default: the context's, or default]")
@watch_option
@output_option("text")
@cluster_options
@report_errors
def command(
    *,
    what: tuple[str, ...],
    namespace: str | None,
    watches: bool,
    output: Output,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Show how cards are joined with each other and with the node's network cards.

    The matrix is that of nvidia-smi topo -m, with its legend: NVLinks or the way through PCIe of each two cards, and
    the CPUs and the NUMA node near each card. For a pod it has the pod's cards, with their indexes on the node, and a
    sentence says how they are joined. A NAME without a kind is a node if there is one of that name, else a pod.

    The node's agent reads the values. Without the right to read its page you see the matrix of your own pods' cards.

    \b
    Examples:
      tessera topo gpu-node-1
      tessera topo pod/train-0 -n team
      tessera topo gpu-node-1 -o json | jq '.cards[0].links'
    """
    kind, name = _parse(what)
    home = own_namespace(namespace, kubeconfig, context)
    found = read_or_watch(
        "tessera-topo",
        lambda client: _read(client, kind, name, home),
        lambda found, _: (each.expandtabs() for each in _lines(found)),
        watches=watches,
        kubeconfig=kubeconfig,
        context=context,
    )
    if output.for_programs:
        output.show(_document(found), (), [f"{found.kind}/{found.name}"])
    else:
        say_tabbed(*_lines(found))
    if not found.topology.cells():
        say("note: the agent's matrix does not fit its cards, so nothing is known of their links", err=True)


def _parse(what: tuple[str, ...]) -> tuple[str, str]:
    """The kind, empty if none is given, and the name."""
    word = "/".join(what)
    kind, slash, name = word.partition("/") if len(what) <= 2 else ("", "", "")
    if not slash and kind:
        return "", kind
    if kind not in _KINDS or not name or "/" in name:
        raise click.UsageError(f"{word[:60]!r} is neither NAME nor KIND/NAME; kinds are node and pod")
    return _KINDS[kind], name


async def _read(client: "Client", kind: str, name: str, namespace: str) -> _Found:
    from tessera.cli.base.usage import SILENT, read_or_explain
    from tessera.explain.topology_text import describe_joined

    node = name if kind == "node" or (not kind and await _is_node(client, name)) else ""
    pod = "" if node else name
    if pod:
        node = await _node_of(client, namespace, pod)
    fleet = (await read_or_explain(client, (node,), namespace=namespace)).fleet
    for silent in fleet.failures:
        raise CommandError(f"error: the cards of node {node} are unknown: {silent.reason or SILENT}")
    (page,) = fleet.nodes
    if page.topology is None or not page.topology.cards:
        raise CommandError(
            f"error: the agent of node {node} does not say how its cards are joined: it has none, has not read them"
            " yet, is of an earlier version, or you have no pod there"
        )
    if not pod:
        return _Found("node", node, node, page.topology, "", page.simulated)
    held = page.cards_of(namespace, pod)
    if not held:
        raise CommandError(
            f"error: pod {namespace}/{pod} holds no card of node {node}; see tessera why {pod} -n {namespace}"
        )
    joined = describe_joined(page.topology, held)
    return _Found("pod", pod, node, page.topology.of_cards(held), joined, page.simulated)


async def _is_node(client: "Client", name: str) -> bool:
    from tessera.kube.errors import Forbidden, NotFound
    from tessera.kube.resources import NODES

    try:
        await client.get(NODES, name)
    except (Forbidden, NotFound):
        return False
    return True


async def _node_of(client: "Client", namespace: str, name: str) -> str:
    from tessera.kube.errors import NotFound
    from tessera.kube.resources import PODS

    try:
        pod = await client.get(PODS, name, namespace)
    except NotFound as error:
        raise CommandError(
            f"error: there is no pod {name!r} in namespace {namespace}, and no node of that name that you may read"
        ) from error
    if not pod.spec.node_name:
        raise CommandError(f"error: pod {namespace}/{name} has no node yet; see tessera why {name} -n {namespace}")
    return pod.spec.node_name


def _lines(found: _Found) -> Iterator[str]:
    from tessera.explain.topology_text import matrix_text

    yield from matrix_text(found.topology).rstrip("\n").split("\n")
    notes = [
        f"pod {found.name} on node {found.node}: {found.joined}" if found.joined else "",
        f"clique {found.topology.clique}, the node's label nvidia.com/gpu.clique" if found.topology.clique else "",
        "simulated cards" if found.simulated else "",
    ]
    if any(notes):
        yield ""
        yield from filter(None, notes)


def _document(found: _Found) -> dict[str, Any]:
    topology = found.topology
    names = [*(f"GPU{card.index}" for card in topology.cards), *(f"NIC{at}" for at in range(len(topology.network)))]
    links: list[dict[str, str]] = [
        {other: text for other, text in zip(names, row, strict=True) if other != name}
        for name, row in zip(names, topology.cells(), strict=False)
    ] or [{} for _ in names]
    cards = [
        {
            "name": name,
            "uuid": card.uuid,
            "cpuAffinity": card.cpus or None,
            "numaAffinity": card.numa,
            "gpuNumaId": card.memory_node,
            "links": each,
        }
        for name, card, each in zip(names, topology.cards, links, strict=False)
    ]
    rest = zip(names[len(cards) :], topology.network, links[len(cards) :], strict=True)
    return {
        "kind": found.kind,
        "name": found.name,
        "node": found.node,
        "joined": found.joined,
        "clique": topology.clique,
        "cards": cards,
        "network": [{"name": name, "device": device, "links": each} for name, device, each in rest],
        "simulated": found.simulated,
    }
