"""Requests to the API server for one pod, counted there."""

from collections import Counter

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.instaslice import INSTASLICES
from tessera_lab.apiserver.audit import AuditEntry

#: What Tessera writes whether or not pods come. ConfigMaps are the records of how nodes came to their cards.
HOUSEKEEPING = ("leases", "secrets", "mutatingwebhookconfigurations", "configmaps")
#: Writes nodes in their records only, a few times in a node's life.
CONTROLLER = "system:serviceaccount:tessera-system:tessera-controller"


def tessera_writes(lab: VirtualLab) -> list[AuditEntry]:
    """The writes of Tessera's processes that concern pods."""
    return [
        entry
        for entry in lab.cluster.server.audit.writes()
        if entry.user.startswith("system:serviceaccount:tessera-system:")
        and not entry.resource.startswith(HOUSEKEEPING)
        and (entry.resource, entry.user) != ("nodes", CONTROLLER)
    ]


@pytest.mark.parametrize("nodes", ["1xA100-40GB", "12*2xA100-40GB"])
def test_a_pod_costs_at_most_three_writes_and_an_event_whatever_the_number_of_nodes(in_lab: InLab, nodes: str) -> None:
    async def scenario(lab: VirtualLab) -> None:
        lab.cluster.server.audit.clear()
        await lab.create("pod", {"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-2g.10gb": 2})
        await lab.running("pod")
        await lab.until(lambda: lab.settled("pod"), "ungated and created")
        await lab.until(lambda: lab.events_of("pod", "SliceReady"), "its owner is told where its slices are")
        (told,) = lab.events_of("pod", "SliceReady")
        assert (told.type, told.message.count("on GPU 0"), " of node-" in told.message) == ("Normal", 3, True)
        assert float(told.message.rpartition(", ")[2].removesuffix(" s")) < 60
        writes = [each for each in tessera_writes(lab) if not each.resource.startswith("events")]
        assert len(writes) <= 3, [f"{each.verb} {each.resource} {each.subresource}" for each in writes]
        assert len(tessera_writes(lab)) == len(writes) + 1, "nothing waits for the event"

    in_lab(scenario, nodes=nodes)


def test_a_burst_shares_its_writes(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        lab.cluster.server.audit.clear()
        names = [f"p{n}" for n in range(28)]
        for name in names:
            await lab.create(name, {"nvidia.com/mig-1g.5gb": 1})
        await lab.running(*names)
        await lab.until(lambda: all(lab.settled(name) for name in names), "ungated and created")
        writes = [each.resource for each in tessera_writes(lab)]
        assert writes.count("events") == 28, "each owner is told once where the slices are"
        assert len(writes) - 28 < 2.5 * 28

    in_lab(scenario)


def test_nothing_is_written_before_a_decision(in_lab: InLab) -> None:
    """A pod that finds no place costs an event, its condition at most once a minute, and one reservation."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.create("whole", {"nvidia.com/mig-7g.40gb": 1})
        await lab.running("whole")
        await lab.until(lambda: lab.settled("whole"), "ungated and created")
        lab.cluster.server.audit.clear()
        await lab.create("waits", {"nvidia.com/mig-1g.5gb": 1})
        await lab.until(lambda: lab.events_of("waits", "SliceWaiting"), "the pod's event says why it waits")
        await lab.clock.sleep(300)
        written = Counter(entry.resource for entry in tessera_writes(lab))
        assert written.keys() <= {"events", "pods", INSTASLICES.label}
        assert written["pods"] <= 6
        assert written[INSTASLICES.label] <= 1

    in_lab(scenario, nodes="1xA100-40GB")
