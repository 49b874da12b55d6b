"""In an hour in which nothing happens, Tessera writes nothing but the controller's Lease, also with a bad card."""

import asyncio
from collections import Counter

import pytest
from tests.cluster.test_pod_notices import break_card
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.nvml.interface import GpuUuid

WRITES = frozenset({"create", "update", "patch", "delete"})


def report_an_xid(lab: VirtualLab, _gpu: GpuUuid) -> None:
    break_card(lab)


def lose(lab: VirtualLab, gpu: GpuUuid) -> None:
    lab.machine().lose(gpu)


def make_unreadable(lab: VirtualLab, gpu: GpuUuid) -> None:
    lab.machine().fail("devices", 999, times=None, gpu=gpu)


def test_a_quiet_hour_costs_no_write(in_lab: InLab) -> None:
    """Three of four cards are bad, each in its way."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.label("node-1", layout="all-disabled")
        await lab.becomes({"nvidia.com/gpu": 4})
        await lab.create("holder", {"nvidia.com/gpu": 1})
        await lab.running("holder")
        for fault, gpu in zip((report_an_xid, lose, make_unreadable), lab.machine().uuids(), strict=False):
            fault(lab, gpu)
        await asyncio.sleep(300)
        before = Counter(lab.cluster.server.audit.verbs)
        await asyncio.sleep(3600)
        made = lab.cluster.server.audit.verbs - before
        ours = {key: count for key, count in made.items() if ":tessera-" in key[0] and key[1] in WRITES}
        leases = [count for key, count in ours.items() if key[2].startswith("leases")]
        assert sum(leases) > 0, "without the Lease, this counts nothing"
        # The API server makes a token and stores nothing: one for the agents' pages each five minutes.
        tokens = {key for key in ours if key[2:] == ("serviceaccounts", "token")}
        assert sum(ours[key] for key in tokens) <= 3600 / 300
        assert {
            key: count for key, count in ours.items() if not key[2].startswith("leases") and key not in tokens
        } == {}

    in_lab(scenario, nodes="4xA100-40GB")


@pytest.mark.soak
def test_a_card_whose_errors_alternate_writes_little(in_lab: InLab) -> None:
    """It answered once between two errors, and each was told as a new state of the layout."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.label("node-1", layout="all-disabled")
        await lab.becomes({"nvidia.com/gpu": 4})
        machine = lab.machine()
        gpu = machine.uuids()[0]
        before = Counter(lab.cluster.server.audit.verbs)
        for number in range(90):
            for call in ("*", "devices"):
                machine.fail(call, (999, 8, 11, 4, 10)[number % 5], times=1, gpu=gpu)
            await asyncio.sleep(10)
        made = lab.cluster.server.audit.verbs - before
        agents = sum(count for key, count in made.items() if ":tessera-agent" in key[0] and key[1] in WRITES)
        assert agents < 90, "less than one write for each error"

    in_lab(scenario, nodes="4xA100-40GB")
