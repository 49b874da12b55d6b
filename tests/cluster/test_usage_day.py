"""A simulated day: what the controller counts is what pods held, and all parts sum to the capacity.

The agents, the controller and its record are the production code; nodes, cards and time are simulated.
"""

import random
from typing import Any

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.resources import CONFIGMAPS, NODES, PODS
from tessera.usage.record import HOUR, RECORD_KEY, RECORD_NAME, decode_record
from tessera.usage.report import Grouping, UsageTotals, make_report, totals_of_record

#: A 3g.20gb of an A100-40GB has 4 of 8 memory slots, a 1g.5gb has one.
SIZES = {"nvidia.com/mig-3g.20gb": 0.5, "nvidia.com/mig-1g.5gb": 0.125, "nvidia.com/gpu": 1.0}
USERS = ("anna", "bert")


class Day:
    """Pods that come and go, and the GPU-hours that they really held by user."""

    def __init__(self, lab: VirtualLab) -> None:
        self.lab = lab
        self.true = dict.fromkeys(USERS, 0.0)
        self._rng = random.Random(5)

    async def work(self, until: float) -> None:
        """One pod after the other, each for some minutes or hours."""
        number = 0
        while self.lab.clock.now() < until:
            name, user = f"job-{number}", USERS[number % 2]
            resource = self._rng.choice(sorted(SIZES))
            await self._run(name, user, resource, self._rng.choice([20.0, 300.0, 2500.0, 9000.0]))
            await self.lab.clock.sleep(self._rng.uniform(0, 1500))
            number += 1

    async def _run(self, name: str, user: str, resource: str, seconds: float) -> None:
        metadata = {"labels": {"tessera.dev/user": user}}
        await self.lab.create(name, {resource: 1})
        await self.lab.client.merge_patch(PODS, name, {"metadata": metadata}, "default")
        await self.lab.running(name)
        began = self.lab.clock.now()
        await self.lab.clock.sleep(seconds)
        await self.lab.delete(name)
        self.true[user] += (self.lab.clock.now() - began) * SIZES[resource] / HOUR


async def totals(lab: VirtualLab) -> UsageTotals:
    found = await lab.client.get(CONFIGMAPS, RECORD_NAME, "tessera-system")
    return totals_of_record(decode_record(found.data[RECORD_KEY]), 0.0)


@pytest.mark.soak
@pytest.mark.parametrize("hours", [2.4, 24])
def test_simulated_hours_reconcile(in_lab: InLab, hours: float) -> None:
    """Also with a node that is cordoned for an hour, and a controller that is killed in the middle."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.join("node-1")
        await lab.until(lambda: lab.offers("node-1"), "node-1 has joined")
        await lab.becomes({"nvidia.com/gpu": 2}, "node-2")
        began, day = lab.clock.now(), Day(lab)
        await day.work(began + (hours / 2 - 1) * HOUR)
        await lab.client.merge_patch(NODES, "node-2", {"spec": {"unschedulable": True}})
        await lab.clock.sleep(HOUR)
        await lab.client.merge_patch(NODES, "node-2", {"spec": {"unschedulable": None}})
        await lab.kill()
        await day.work(began + hours * HOUR)
        await lab.clock.sleep(600)
        check(await totals(lab), day, (lab.clock.now() - began) / HOUR)

    in_lab(scenario, nodes="1xA100-40GB,2xT4", mig_config="", pages=True)


def check(found: UsageTotals, day: Day, hours: float) -> None:
    report = make_report(found, Grouping.USER)
    cards = report.cards
    assert cards is not None
    assert found.simulated
    # Counting began a little before the day. The last write is at most five minutes old, the pages in it one more.
    assert 3 * hours - 0.35 < cards.capacity < 3 * hours + 0.6
    parts: dict[str, Any] = {
        "allocated": cards.allocated,
        "free": cards.free,
        "unavailable": cards.unavailable,
        "unknown": cards.unknown,
    }
    assert all(value >= -0.001 for value in parts.values()), parts
    assert f"{sum(parts.values()) / cards.capacity:.1%}" == "100.0%"
    assert f"{sum(row.allocated for row in report.rows) / cards.allocated:.1%}" == "100.0%"
    by_user = {row.name: row.allocated for row in report.rows}
    assert by_user.keys() == day.true.keys()
    # A lease begins when kubelet gives the device, before the container runs: some seconds for each pod.
    for user, held in day.true.items():
        assert abs(by_user[user] - held) < 0.02 * held + 0.05, (by_user, day.true)
    assert abs(parts["unavailable"] - 2.0) < 0.1
    # An agent that has just begun cannot tell about the seconds before.
    assert parts["unknown"] < 0.01
