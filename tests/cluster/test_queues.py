"""Queue objects on the lab: a maximum holds back, the status shows what is held, and people see why."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.queues import QUEUES
from tessera.dashboard.answers import explain_waiting, waiting_pods
from tessera.dashboard.explainer import explain_privately
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.source import ClusterSource
from tessera.explain.explanation import parse_query
from tessera.explain.query import explain
from tessera.kube.errors import Invalid
from tessera.kube.resources import NAMESPACES
from tessera.visibility import Redactor, Visibility

SMALL = {"nvidia.com/mig-1g.5gb": 1}


def queue(name: str, **spec: Any) -> dict[str, Any]:
    """A Queue object."""
    return {"apiVersion": "tessera.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def test_a_namespace_holds_no_more_than_the_maximum_of_its_queue(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(QUEUES, queue("default", maximum="10Gi", namespaces=["default"]))
        for name in ("a", "b", "c"):
            await lab.create(name, SMALL)
        await lab.until(lambda: lab.events_of("c", "SliceWaiting"), "the third is told why it waits")
        assert "queue default may hold 10Gi (spec.maximum)" in lab.events_of("c", "SliceWaiting")[0].message
        await lab.running("a", "b")
        await lab.clock.sleep(130)
        found = await lab.client.get(QUEUES, "default")
        status = found["status"]
        assert (status["held"], status["slots"], status["waiting"]) == ("10Gi", 2, 1)
        defaults = {"weight": 1, "halfLife": "168h", "waitingPrice": 10}
        assert found["spec"] == {"maximum": "10Gi", "namespaces": ["default"], **defaults}
        await lab.delete("a")
        await lab.running("c")
        assert lab.phase("c") == "Running"

    in_lab(scenario, "1xA100-40GB")


def test_why_and_the_page_know_the_queue_that_a_namespace_names(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(QUEUES, queue("research", maximum="10Gi"))
        labels = {"tessera.dev/queue": "research"}
        await lab.client.merge_patch(NAMESPACES, "default", {"metadata": {"labels": labels}})
        await lab.clock.sleep(5)
        for name in ("a", "b", "c"):
            await lab.create(name, SMALL)
        await lab.until(lambda: lab.events_of("c", "SliceWaiting"), "the third is told why it waits")
        (why,) = (await explain(lab.client, lab.clock, parse_query("c"), "default")).answers
        assert why.case == "queue-full"
        async with page_source(lab) as source:
            now = source.objects
            found = explain_waiting(waiting_pods(now.pods), now)
            assert found["default/c"].verdict == why.verdict
            tenant = Visibility(namespaces=frozenset({"default"}))
            (private,) = explain_privately(source.objects, [lab.existing_pod("c")], tenant, Redactor(b"key"))
            assert (private.case, private.verdict) == (why.case, why.verdict)

    in_lab(scenario, "1xA100-40GB")


@asynccontextmanager
async def page_source(lab: VirtualLab) -> AsyncIterator[ClusterSource]:
    """The page's mirror of the cluster, once it has read all."""
    rng = random.Random(0)
    source = ClusterSource(lab.client, FeedGroup(), watched=lambda: True, clock=lab.clock, rng=rng)
    running = asyncio.create_task(source.run())
    try:
        await lab.clock.sleep(30)
        yield source
    finally:
        running.cancel()


@pytest.mark.parametrize(
    "spec",
    [
        {"weight": 0},
        {"weight": 1001},
        {"maximum": "10GB"},
        {"guaranteed": -1},
        {"halfLife": "a week"},
        {"namespaces": ["a", "a"]},
    ],
    ids=str,
)
def test_the_definition_refuses_what_counts_for_nothing(in_lab: InLab, spec: dict[str, Any]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        with pytest.raises(Invalid):
            await lab.client.create(QUEUES, queue("q", **spec))

    in_lab(scenario, "1xA100-40GB")
