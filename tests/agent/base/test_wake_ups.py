"""Who wakes at which change."""

import asyncio

import pytest

from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera_lab.simulation.virtual_time import run_virtual


async def woken(wanted: Fact, announced: Fact) -> bool:
    """True if one who waits for some facts wakes at others."""
    changes = ChangeNotifier()
    waits = changes.about(wanted)
    waiting = asyncio.create_task(waits.wait(waits.count))
    await asyncio.sleep(0)
    changes.notify(announced)
    await asyncio.sleep(0)
    done = waiting.done() or waits.count > 0
    waiting.cancel()
    return done


@pytest.mark.parametrize(
    ("wanted", "announced", "wakes"),
    [
        (Fact.PODS, Fact.PODS, True),
        (Fact.PODS, Fact.CARDS, False),
        (Fact.PODS | Fact.CARDS, Fact.CARDS, True),
        (Fact.PODS, Fact.PODS | Fact.TOLD_PODS, True),
        (Fact.NODE, Fact.LAYOUT | Fact.OWNERS, False),
    ],
)
def test_a_part_wakes_at_its_facts_only(wanted: Fact, announced: Fact, wakes: bool) -> None:
    assert run_virtual(woken(wanted, announced)) is wakes


def test_a_change_before_the_wait_ends_it_at_once() -> None:
    async def story() -> None:
        changes = ChangeNotifier()
        pods = changes.about(Fact.PODS)
        count = pods.count
        changes.notify(Fact.PODS)
        await asyncio.wait_for(pods.wait(count), 1.0)

    run_virtual(story())


def test_whoever_names_no_fact_announces_all() -> None:
    changes = ChangeNotifier()
    changes.notify()
    assert [changes.about(fact).count for fact in Fact] == [1] * len(Fact)
