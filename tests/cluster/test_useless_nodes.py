"""New nodes that do not help: the same is not asked for again for a growing time, whatever makes them useless."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from tests.cluster.autoscaled import GROUPS, WHOLE, autoscaled, made
from tests.cluster.new_nodes import Nodes
from tests.support.searching import SEARCHING

from tessera.api.nodes.node_groups import NEW_NODE_REASON, NO_HELP_REASON
from tessera.explain.explanation import parse_query
from tessera.explain.query import explain
from tessera.kube.resources import CONFIGMAPS, NAMESPACES
from tessera_lab.cloud.autoscaler.process import ClusterAutoscaler

Play = Callable[..., None]
GPU, ONE, SEVEN = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-7g.40gb"
#: The first pause is 5 minutes, and each later one as long as the search has lasted. So the tries, each with one node,
#: begin about 6, 32 and 85 minutes after the first pause began; ``make test`` is over before the last of them.
HOURS, TRIES = (2, 3) if SEARCHING else (1, 2)

TEAM_TAINT = ({"key": "team", "value": "x", "effect": "NoSchedule"},)
KARPENTER = {"karpenter.sh/nodepool": "a"}
KARPENTERS = GROUPS.replace("{pool: pairs}", "{pool: pairs, karpenter.sh/nodepool: a}")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that are of no use.

    Attributes:
        why: the words of the reason.
        groups: what Tessera is told.
        requests: the limits of each pod.
        spec: what the pods' specs have besides.
        machine: what the machines have that the file does not say.
        lost: cards of each node that are lost when it registers.
        first: nodes that the first request may bring.
    """

    why: str
    groups: str = GROUPS
    requests: Sequence[dict[str, int]] = ({ONE: 1},)
    spec: Mapping[str, Any] = {}
    machine: Mapping[str, Any] = {}
    lost: int = 0
    first: int = 1


CASES = {
    "a taint that the file does not have": Case(machine={"taints": TEAM_TAINT}, why="untolerated taint {team: x}"),
    "whole cards behind a taint": Case(
        machine={"taints": TEAM_TAINT}, groups=WHOLE, requests=[{GPU: 2}], why="untolerated taint {team: x}"
    ),
    "a label that nodes do not get": Case(
        groups=GROUPS + "    labels: {zone: z1}\n", spec={"nodeSelector": {"zone": "z1"}}, why="didn't match"
    ),
    "a broken card": Case(requests=[{SEVEN: 2}], lost=1, why=f"Insufficient {SEVEN}"),
    "a broken card of whole ones": Case(groups=WHOLE, requests=[{GPU: 2}], lost=1, why=f"Insufficient {GPU}"),
    "no card that works": Case(lost=2, why="its cards offer no 1g.5gb"),
    "less CPU than promised, beside the pods of DaemonSets": Case(
        machine={"labels": KARPENTER},
        groups=KARPENTERS + "    allocatable: {cpu: 64}\n",
        requests=[{ONE: 1, "cpu": 64}],
        why="got no pod in planning",
    ),
    "impossible rules together, of nodes by Karpenter": Case(
        machine={"labels": KARPENTER},
        groups=KARPENTERS,
        requests=[
            {SEVEN: 2, "cpu": 5000},
            {SEVEN: 2, "memory": 2**50},
            *[{SEVEN: 2, "cpu": 500 + n} for n in range(6)],
        ],
        why="too small",
        first=8,
    ),
}


def lose_cards(lab: Nodes, scaler: ClusterAutoscaler, number: int) -> asyncio.Event:
    """Takes cards from each node as soon as it registers, until the event is set."""
    broken: set[str] = set()
    enough = asyncio.Event()

    def changed() -> None:
        for name in {each.name for each in scaler.cloud.instances()} & lab.cluster.nodes.keys() - broken:
            broken.add(name)
            machine = lab.cluster.nodes[name].machine
            assert machine is not None
            for gpu in () if enough.is_set() else machine.uuids()[:number]:
                machine.lose(gpu)

    scaler.cloud.listen(changed)
    return enough


async def why(lab: Nodes, pod: str) -> Sequence[str]:
    (answer,) = (await explain(lab.client, lab.clock, parse_query(pod), "default")).answers
    return tuple(answer.facts)


async def manage(lab: Nodes) -> None:
    labels = {"tessera.dev/placement": "managed"}
    await lab.client.merge_patch(NAMESPACES, "default", {"metadata": {"labels": labels}})


#: A cause in the nodes; the others are long.
SHORT = "a taint that the file does not have"


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=() if name == SHORT else pytest.mark.soak) for name, case in CASES.items()],
)
def test_few_nodes_come_in_hours_for_pods_that_they_do_not_help(with_new_nodes: Play, case: Case) -> None:
    async def scenario(lab: Nodes) -> None:
        await manage(lab)
        async with autoscaled(lab, case.groups, unneeded=120, **dict(case.machine)) as scaler:
            lose_cards(lab, scaler, case.lost)
            for number, limits in enumerate(case.requests):
                await lab.create(f"p{number}", limits, **case.spec)
            await lab.until(lambda: lab.events_of("p0", NO_HELP_REASON), "a node was of no use", 3600)
            (fact,) = (each for each in await why(lab, "p0") if "no new node of group pairs is asked for" in each)
            assert case.why in fact
            await lab.clock.sleep(HOURS * 3600)
            assert case.first <= made(scaler) <= case.first + TRIES

    with_new_nodes(scenario, drivers=False)


@pytest.mark.soak
def test_a_new_leader_keeps_the_pause_and_a_change_of_the_group_ends_it(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        async with autoscaled(lab, unneeded=120, taints=TEAM_TAINT) as scaler:
            await lab.create("p", {ONE: 1})
            await lab.until(lambda: len(lab.events_of("p", NO_HELP_REASON)) > 1, "two nodes were of no use", 7200)
            assert made(scaler) == 2
            for _ in range(2):
                await lab.kill()
                await lab.clock.sleep(200)
            assert made(scaler) == 2
            await lab.client.merge_patch(
                CONFIGMAPS, "tessera-node-groups", {"data": {"groups.yaml": GROUPS + "    max: 3\n"}}, "tessera-system"
            )
            await lab.clock.sleep(120)
            assert made(scaler) == 3

    with_new_nodes(scenario, drivers=False)


def test_a_pause_holds_back_no_pod_that_the_nodes_help(with_new_nodes: Play) -> None:
    """Neither one of other requests, nor the same pod once it is made anew with what was wrong put right."""

    async def scenario(lab: Nodes) -> None:
        async with autoscaled(lab, unneeded=120, taints=TEAM_TAINT) as scaler:
            await lab.create("p", {ONE: 1})
            await lab.until(lambda: lab.events_of("p", NO_HELP_REASON), "a node was of no use", 3600)
            tolerates = [{"key": "team", "operator": "Exists"}]
            await lab.create("honest", {SEVEN: 2}, tolerations=tolerates)
            await lab.running("honest")
            assert (made(scaler), len(lab.events_of("p", NEW_NODE_REASON))) == (2, 1)
            await lab.delete("p")
            await lab.create("p", {ONE: 1}, tolerations=tolerates)
            await lab.running("p")
            assert made(scaler) == 3

    with_new_nodes(scenario, drivers=False)


def test_once_a_node_has_helped_as_many_come_as_are_needed(with_new_nodes: Play) -> None:
    """The cards of the first nodes break; those of the next are well."""

    async def scenario(lab: Nodes) -> None:
        async with autoscaled(lab, unneeded=120) as scaler:
            enough = lose_cards(lab, scaler, 2)
            names = [f"p{number}" for number in range(3)]
            for name in names:
                await lab.create(name, {SEVEN: 2})
            await lab.until(lambda: lab.events_of("p0", NO_HELP_REASON), "nodes were of no use", 3600)
            assert made(scaler) == 3
            enough.set()
            await lab.until(lambda: all(map(lab.ready, names)), "all run", 3600)
            assert made(scaler) == 6

    with_new_nodes(scenario, drivers=False)
