"""At one time `tessera why`, `tessera queue`, live page, condition and event of a pod say the same sentence."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from tests.support.tasks import running_tasks
from tests.support.virtual_lab import InLab, manifest

from tessera.access.agent_pages import FleetUsage
from tessera.api.instaslice import INSTASLICES
from tessera.api.names import INSTASLICE_NAMESPACE, SLICE_PROMISED_CONDITION
from tessera.api.pod_annotations import GANG_SIZE_ANNOTATION
from tessera.api.queues import QUEUES
from tessera.cli.queue import queue_lines
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.documents import WaitingDocument
from tessera.explain.explanation import parse_query
from tessera.explain.query import explain
from tessera.forecast.queue.satellite import QueueTask
from tessera.forecast.queue_page import QueuePage, decode_page, encode_page
from tessera.kube.resources import NODES, PODS
from tessera.observe.queue_reading import QueueReading
from tessera_lab.activity.lab_cards import LabCards

WHOLE, HALF, ONE = ({f"nvidia.com/mig-{each}": 1} for each in ("7g.40gb", "3g.20gb", "1g.5gb"))
Lab = Any


def page_of_controller() -> QueuePage:
    """The page as it is served; a controller's page needs sockets, which the lab on virtual time has not."""
    coroutines: list[Any] = [each.get_coro() for each in running_tasks()]
    found = [each.cr_frame.f_locals.get("self") for each in coroutines if each.cr_frame is not None]
    (task,) = {each for each in found if isinstance(each, QueueTask) and each.page.pods}
    return decode_page(encode_page(task.page))


async def holder(lab: Lab, *slices: dict[str, int], name: str = "holder") -> None:
    await lab.create(name, *slices)
    await lab.running(name)


async def full(lab: Lab) -> None:
    await holder(lab, WHOLE)
    await lab.create("waits", HALF)


async def fragmented(lab: Lab) -> None:
    for number in range(7):
        await lab.create(f"small-{number}", ONE)
    await lab.running(*(f"small-{number}" for number in range(7)))
    for pod in [each for each in lab.pods.cache.values() if each.metadata.name.startswith("small-")]:
        if starts(lab)[pod.metadata.uid] not in (1, 5):
            await lab.delete(pod.metadata.name)
    await lab.clock.sleep(10)
    await lab.create("waits", HALF)


def starts(lab: Lab) -> Mapping[str, int]:
    results = lab.instaslice().spec.pod_allocation_requests
    return {uid: request.slices[0].start for uid, request in results.items()}


async def reserved(lab: Lab) -> None:
    await holder(lab, HALF)
    await holder(lab, HALF, name="second")
    await lab.create("large", WHOLE)
    await lab.until(lambda: lab.events_of("large", "SliceReserved"), "slots are reserved")
    await lab.delete("second")
    await lab.clock.sleep(10)
    await lab.create("waits", HALF)


async def broken_card(lab: Lab) -> None:
    await holder(lab, WHOLE)
    home = lab.instaslice().spec.pod_allocation_requests[lab.pod("holder").metadata.uid].slices[0].gpu_uuid
    index = lab.instaslice().status.node_resources.indexes()[home]
    LabCards(lab.cluster.nodes).break_card(f"node-1/{1 - index}", xid=79)
    await lab.clock.sleep(60)
    await lab.create("waits", HALF)


async def broken_card_of_another_model(lab: Lab) -> None:
    """The card would serve no pod that waits for a profile of the others."""
    LabCards(lab.cluster.nodes).break_card("node-2/0", xid=79)
    await holder(lab, WHOLE)
    await lab.clock.sleep(60)
    await lab.create("waits", HALF)


async def maximum_of_its_queue(lab: Lab) -> None:
    spec = {"maximum": "20Gi", "namespaces": ["default"]}
    await lab.client.create(QUEUES, {"metadata": {"name": "default"}, "spec": spec})
    await holder(lab, HALF)
    await lab.create("waits", HALF)


async def cordoned(lab: Lab) -> None:
    await lab.client.merge_patch(NODES, "node-1", {"spec": {"unschedulable": True}})
    await lab.create("waits", HALF)


async def no_cpu(lab: Lab) -> None:
    await lab.create("busy", {**HALF, "cpu": "50"})
    await lab.running("busy")
    await lab.create("waits", {**HALF, "cpu": "50"})


async def too_large(lab: Lab) -> None:
    await lab.create("waits", {**HALF, "cpu": "4000"})


async def another_selector(lab: Lab) -> None:
    await lab.create("waits", HALF, nodeSelector={"zone": "nowhere"})


async def another_gate(lab: Lab) -> None:
    await lab.create("waits", HALF, schedulingGates=[{"name": "example.com/hold"}])


async def incomplete_gang(lab: Lab) -> None:
    await gang(lab, "waits", 3)


async def gang_without_room(lab: Lab) -> None:
    await holder(lab, HALF)
    await gang(lab, "waits", 2)
    await gang(lab, "beside", 2)


async def large_gang(lab: Lab) -> None:
    for name in ("waits", "b", "c"):
        await gang(lab, name, 3)


async def gang(lab: Lab, name: str, size: int) -> None:
    body = manifest(name, HALF)
    body["metadata"] |= {"labels": {"tessera.dev/gang": "train"}, "annotations": {GANG_SIZE_ANNOTATION: str(size)}}
    await lab.client.create(PODS.as_dicts(), body, "default")


async def no_kind(lab: Lab) -> None:
    await lab.delete_kind()
    await lab.create("waits", HALF)


SITUATIONS: Mapping[str, tuple[Callable[[Lab], Awaitable[None]], str]] = {
    each.__name__: (each, case)
    for each, case in (
        (full, "full"),
        (fragmented, "fragmented"),
        (reserved, "reserved"),
        (broken_card, "card-held-back"),
        (broken_card_of_another_model, "full"),
        (maximum_of_its_queue, "queue-full"),
        (cordoned, "no-node"),
        (no_cpu, "node-full"),
        (too_large, "never-fits"),
        (another_selector, "no-node"),
        (another_gate, "other-gate"),
        (incomplete_gang, "gang-incomplete"),
        (gang_without_room, "gang-no-room"),
        (large_gang, "never-fits"),
        (no_kind, "kind-missing"),
    )
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_all_say_the_same_sentence(name: str, in_lab: InLab) -> None:
    situation, case = SITUATIONS[name]

    async def scenario(lab: Lab) -> None:
        await situation(lab)
        await lab.clock.sleep(180)
        page = page_of_controller()
        (row,) = [each for each in page.pods if each.name == "waits"]
        assert row.reason == case
        capital = row.detail[0].upper() + row.detail[1:]

        async def read_page(_client: Any) -> QueuePage:
            return page

        (answer,) = (await explain(lab.client, lab.clock, parse_query("waits"), "default", read_page)).answers
        assert answer.case == case
        assert answer.verdict.endswith(f"; {row.detail}")
        (line,) = [each for each in queue_lines(QueueReading(page=page), "default") if each.startswith("waits ")]
        assert line.endswith(row.detail)
        objects = await lab.client.list_allowed(INSTASLICES, INSTASLICE_NAMESPACE, failed=None) or ()
        document = make_documents(FleetUsage(), lab.pods.cache.values(), objects, queue=page)["waiting/default/waits"]
        assert isinstance(document, WaitingDocument)
        assert (document.case, document.why) == (case, answer.verdict)
        condition = lab.pod("waits").status.condition(SLICE_PROMISED_CONDITION)
        assert condition.message.startswith(capital)
        assert lab.events_of("waits", "SliceForecast")[-1].message.startswith(capital)

    nodes = {"broken_card": "2xA100-40GB", "broken_card_of_another_model": "1xA100-40GB,1xH100-80GB"}
    in_lab(scenario, nodes=nodes.get(name, "1xA100-40GB"))
