"""The queue as a part of the controller: a forecast is made of the whole state alone."""

import asyncio
import random

import pytest
from tests.support.slicer_cluster import SlicerCluster
from tests.webhook.conftest import NAMESPACE, Lab, in_lab

from tessera.api.names import PodUid
from tessera.clock import LoopClock
from tessera.controller.slicing.cycle import take_in
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.forecast.queue.competition import CurrentPage
from tessera.forecast.queue.satellite import PERIOD, QueueTask
from tessera.forecast.queue_page import QueuePage
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.informer import Informer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import NODES, PODS


def large() -> SlicerCluster:
    """More nodes than one step takes in, and one pod more than they have room for."""
    cluster = SlicerCluster()
    for number in range(8):
        cluster.node(f"n{number}")
    for number in range(9):
        cluster.pod(f"p{number}", "7g.40gb")
    return cluster


def task_of(lab: Lab, cluster: SlicerCluster, clock: LoopClock) -> QueueTask:
    rng = random.Random(0)
    return QueueTask(
        KubeRuntime(client=lab.client, clock=clock, rng=rng),
        cluster.slicer,
        pods=Informer(lab.client, PODS, clock=clock, rng=rng),
        nodes=Informer(lab.client, NODES, clock=clock, rng=rng),
        events=EventRecorder(lab.client, component="t", clock=clock, rng=rng),
        namespace=NAMESPACE,
    )


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_no_page_is_made_until_all_nodes_and_pods_are_taken_in(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_in, "ABSORBED_CHANGES", 4)

    async def story(lab: Lab) -> None:
        cluster = large()
        for _ in range(parts):
            cluster.slicer.decide()
        assert not cluster.slicer.is_caught_up
        task = task_of(lab, cluster, lab.clock)
        running = asyncio.create_task(task.run())
        await lab.clock.sleep(4 * PERIOD)
        assert task.page == QueuePage()
        cluster.settle()
        await lab.clock.sleep(2 * PERIOD)
        assert (task.page.leads, len(task.page.pods)) == (True, 1)
        running.cancel()

    in_lab(story)


class WorkClock(LoopClock):
    """A loop's time, which work takes too.

    Attributes:
        worked: seconds of work.
    """

    worked = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.worked


def test_readers_without_end_make_the_page_current_for_a_twentieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant in a loop, against a queue of which each update takes a tenth of a second of the controller's."""

    async def story(lab: Lab) -> None:
        clock = WorkClock(0.0)
        task = task_of(lab, large(), clock)

        def work(_self: CurrentPage, _state: SlicerState) -> QueuePage:
            clock.worked += 0.1
            return QueuePage(leads=True)

        monkeypatch.setattr(CurrentPage, "read", work)
        for _ in range(1_000):
            assert task.page.leads
            await lab.clock.sleep(0.1)
        assert clock.worked == pytest.approx(5.0, rel=0.1)

    in_lab(story)


class RefusingClient:
    """Refuses every write, and notes of which pod."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def with_field_manager(self, _name: str) -> "RefusingClient":
        return self

    async def apply(self, _resource: object, name: str, *_more: object, **_options: object) -> None:
        self.asked.append(name)
        raise ConnectionError


def test_conditions_that_cannot_be_cleared_keep_no_other_from_being_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(lab: Lab) -> None:
        cluster = SlicerCluster()
        for number in range(10):
            cluster.node(f"n{number}")
        uids = [PodUid(cluster.pod(f"p{number:02}", "1g.5gb").uid) for number in range(70)]
        cluster.settle()
        task, client = task_of(lab, cluster, lab.clock), RefusingClient()
        monkeypatch.setattr(task, "_client", client)
        task._told = dict.fromkeys(uids)
        await task._round()
        assert len(client.asked) == 64
        await task._round()
        assert client.asked[64:70] == [f"p{number}" for number in range(64, 70)]

    in_lab(story)
