"""A service in a cluster: signals, agents' pages and findings stand in one row, and a dead agent makes it unknown."""

import msgspec
from tests.cluster.test_scenarios import Play
from tests.cluster.test_silent_agents import ELSEWHERE, select
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.cli.top.columns import table, warnings
from tessera.observe.reading import Usage, read_usage
from tessera.observe.service_rows import ServiceRow, service_rows
from tessera.observe.top_view import TopView, View
from tessera.signals.page import Service, SignalsPage
from tessera_lab.activity.scenario import parse_scenario

NAMES = ("spins", "asleep", "late")
SCENARIO = """
about: The pods of a service hold the clocks of their cards up while they wait; those of another do nothing.
lasts: 12m
use:
- {pods: "default/spins-*", use: {load: 0.05, work: spinning}}
"""


async def read(lab: VirtualLab) -> tuple[Usage, dict[str, ServiceRow]]:
    """The rows of the agents' pages; the controllers of this cluster serve none, so its services are listed here."""
    usage, pods = await read_usage(lab.client), list(lab.pods.cache.values())
    owned = {name: [each for each in pods if each.workload == f"ReplicaSet/{name}"] for name in NAMES}
    services = tuple(
        Service(
            namespace="default",
            kind="ReplicaSet",
            name=name,
            wanted=len(found),
            placed=sum(bool(each.spec.node_name) for each in found),
            ready=sum(each.status.is_ready for each in found),
        )
        for name, found in owned.items()
    )
    rows = service_rows(SignalsPage(leads=True, services=services), usage.fleet, None)
    return msgspec.structs.replace(usage, services=rows), {each.name: each for each in rows}


def test_a_service_that_wastes_power_one_that_does_nothing_and_one_that_waits(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create_owned("spins", {"nvidia.com/gpu": 1}, replicas=2)
        await lab.create_owned("asleep", {"nvidia.com/gpu": 1})
        await lab.until(lambda: lab.ready_of("spins") and lab.ready_of("asleep"), "the pods run")
        await lab.create_owned("late", {"nvidia.com/gpu": 1}, replicas=3)
        await Play(lab, parse_scenario(SCENARIO)).player.run()
        usage, rows = await read(lab)
        spins, asleep, late = rows["spins"], rows["asleep"], rows["late"]
        assert (spins.ready, spins.wanted, spins.unknown, spins.requests) == (2, 2, 0, None)
        assert spins.power == 2 * 420, "60 % of 700 W each, by the kind of work"
        (finding,) = spins.findings
        assert (finding.kind, finding.pods, finding.node) == ("power wasted", 2, "node-1")
        assert [each.kind for each in asleep.findings] == ["never used"]
        assert (late.ready, late.wanted, late.starts) == (1, 3, 2)
        lines = warnings(TopView(view=View.SERVICES), usage)
        assert any("power wasted for 1" in line and "draws 420 of 700 W" in line for line in lines), lines
        assert any("never used: no process in the" in line for line in lines), lines
        await select(lab, ELSEWHERE)
        await lab.clock.sleep(60)
        usage, rows = await read(lab)
        spins = rows["spins"]
        assert (spins.unknown, spins.power, spins.busy, spins.findings) == (2, None, None, ())
        assert any("unknown 2" in line for line in table(TopView(view=View.SERVICES), usage))

    in_lab(scenario, nodes="4xH100-80GB", mig_config="", pages=True)
