"""Spare slices: slots that a queue keeps free for the next pods of its services."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.support.forecast_cluster import ForecastCluster
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName
from tessera.api.pod_annotations import Gang
from tessera.cli.queue import Queues, lines_of
from tessera.clock import rfc3339
from tessera.controller.informers import unknown_owners
from tessera.controller.objects.pod_info import PodInfo, Workload
from tessera.controller.slicing.state.events import PodDeleted
from tessera.controller.slicing.state.instructions import ReportQueue
from tessera.controller.slicing.state.node_records import RESERVATIONS_ANNOTATION
from tessera.explain.kueue_rows import KueueRows
from tessera.handover.reserved_images import AHEAD, PODS, ReservedImages
from tessera.handover.spares import LOOKED_AT, Spares
from tessera.observe.queue_reading import QueueReading

SERVICE = {"maker": "ReplicaSet/svc-1", "owner": "svc", "namespace": "serving"}


@pytest.fixture
def cluster() -> SlicerCluster:
    """One A100 card; queue serving keeps one slice of 3g.20gb; a Deployment of it wants two pods."""
    made = SlicerCluster(reserve_after=60)
    made.pass_time(0)
    made.node("n1")
    made.queue("serving", spare={"3g.20gb": 1})
    made.workloads = {"svc": Workload("svc", 2, 1)}
    made.settle()
    return made


def pod(cluster: SlicerCluster, name: str, *profiles: str, **facts: Any) -> PodInfo:
    """A pod that is created now."""
    made = cluster.pod(name, *profiles, created=rfc3339(cluster.date), **{"namespace": "batch", **facts})
    cluster.settle()
    return made


def run(cluster: SlicerCluster, made: PodInfo) -> PodInfo:
    """A pod with slices has started."""
    ((node, _, _), *_) = cluster.where(made)
    return cluster.put(replace(cluster.pods[made.uid], node=NodeName(node), started=cluster.date))


def gone(cluster: SlicerCluster, made: PodInfo) -> None:
    cluster.remove(made)
    cluster.settle()


def spares(cluster: SlicerCluster) -> list[tuple[str, str, int]]:
    """Node, profile and start of each spare slice."""
    found = [each for each in cluster.slicer.state.reservations.values() if each.is_spare]
    return [(each.node, each.slices[0].profile, each.slices[0].start) for each in found]


def test_a_spare_slice_is_kept_from_others_and_given_to_a_service(cluster: SlicerCluster) -> None:
    first, second = pod(cluster, "batch-1", "3g.20gb"), pod(cluster, "batch-2", "3g.20gb")
    assert cluster.where(first)
    assert not cluster.where(second)
    served = pod(cluster, "svc-1-a", "3g.20gb", **SERVICE)
    assert cluster.where(served)
    assert not cluster.where(second)


def test_a_service_with_other_room_leaves_the_spare_slice(cluster: SlicerCluster) -> None:
    assert cluster.where(pod(cluster, "svc-1-a", "3g.20gb", **SERVICE))
    assert len(spares(cluster)) == 1


@pytest.mark.parametrize(
    "facts",
    [
        {"namespace": "batch"},  # a service of another queue
        {"maker": "Job/svc"},
        {"maker": ""},
        {"owner": "made-up"},
        {"owner": "done"},  # it wants no more pods
    ],
    ids=str,
)
def test_a_spare_slice_is_closed_to(cluster: SlicerCluster, facts: dict[str, str]) -> None:
    cluster.made_up = {"made-up"}
    pod(cluster, "batch-1", "3g.20gb")
    refused = pod(cluster, "pod", "3g.20gb", **{**SERVICE, **facts})
    assert not cluster.where(refused)
    assert len(spares(cluster)) == 1


def test_pods_with_a_forged_owner_get_no_more_slots_than_it_wants(cluster: SlicerCluster) -> None:
    cluster.workloads = {"svc": Workload("svc", 1, 1)}
    assert cluster.where(pod(cluster, "svc-1-a", "3g.20gb", **SERVICE))
    pod(cluster, "batch-1", "1g.5gb")
    assert not cluster.where(pod(cluster, "svc-1-b", "3g.20gb", **SERVICE))


@pytest.mark.parametrize("owner", ["made-up", "done"])
def test_pods_with_a_forged_owner_keep_no_spare_slice_from_the_queue(cluster: SlicerCluster, owner: str) -> None:
    cluster.made_up = {"made-up"}
    batch = pod(cluster, "batch-1", "3g.20gb")
    for number in range(LOOKED_AT):
        pod(cluster, f"pod-{number}", "3g.20gb", **{**SERVICE, "owner": owner})
    assert cluster.where(pod(cluster, "svc-1-a", "3g.20gb", **SERVICE)), "though so many were looked at before it"
    gone(cluster, batch)
    assert len(spares(cluster)) == 1


def test_a_taken_spare_slice_is_made_again_from_the_slots_that_empty_soonest(cluster: SlicerCluster) -> None:
    first = run(cluster, pod(cluster, "batch-1", "3g.20gb", deadline=600.0))
    run(cluster, pod(cluster, "svc-1-a", "3g.20gb", **SERVICE))
    cluster.settle()
    ((_, profile, start),) = spares(cluster)
    assert (profile, start) == ("3g.20gb", cluster.where(first)[0][2])
    second = pod(cluster, "batch-2", "3g.20gb")
    gone(cluster, first)
    assert not cluster.where(second)
    assert cluster.where(pod(cluster, "svc-1-b", "3g.20gb", **SERVICE))


def test_no_spare_slice_is_made_while_a_service_waits(cluster: SlicerCluster) -> None:
    cluster.workloads = {"svc": Workload("svc", 9, 1)}
    first = run(cluster, pod(cluster, "batch-1", "3g.20gb"))
    batch = pod(cluster, "batch-2", "3g.20gb")
    served = [run(cluster, pod(cluster, "svc-1-0", "3g.20gb", **SERVICE))]
    served += [pod(cluster, f"svc-1-{number}", "3g.20gb", **SERVICE) for number in (1, 2)]
    gone(cluster, first)
    assert cluster.where(served[1]), "the slots were spare before it came"
    assert spares(cluster) == []
    gone(cluster, served[0])
    assert cluster.where(batch), "it has waited longer than the third pod"


def test_a_pod_with_a_forged_owner_that_waits_for_ever_keeps_no_spare_slice_from_a_service(
    cluster: SlicerCluster,
) -> None:
    cluster.made_up = {"made-up"}
    pod(cluster, "batch-1", "3g.20gb")
    pod(cluster, "forged", "3g.20gb", **{**SERVICE, "owner": "made-up"})
    assert cluster.where(pod(cluster, "svc-1-a", "3g.20gb", **SERVICE))
    cluster.settle()
    assert len(spares(cluster)) == 1, "the slots that empty soonest"


def test_a_pod_of_higher_priority_takes_it(cluster: SlicerCluster) -> None:
    pod(cluster, "batch-1", "3g.20gb")
    assert cluster.where(pod(cluster, "urgent", "3g.20gb", priority=1000))


def test_a_reservation_for_a_whole_card_ends_a_spare_slice_that_is_in_its_way(cluster: SlicerCluster) -> None:
    whole = pod(cluster, "whole", "7g.40gb")
    assert not cluster.where(whole)
    cluster.pass_time(61)
    cluster.settle()
    assert cluster.where(whole)
    gone(cluster, whole)
    assert len(spares(cluster)) == 1


def test_a_reservation_goes_around_a_spare_slice_where_it_can(cluster: SlicerCluster) -> None:
    cluster.node("n2")
    other = next(name for name in ("n1", "n2") if name != spares(cluster)[0][0])
    holder = run(cluster, pod(cluster, "holder", "7g.40gb"))
    assert cluster.where(holder)[0][0] == other
    whole = pod(cluster, "whole", "7g.40gb")
    cluster.pass_time(61)
    cluster.settle()
    assert cluster.slicer.state.reservations[whole.uid].node == other
    assert len(spares(cluster)) == 1


def test_a_new_controller_keeps_it(cluster: SlicerCluster) -> None:
    pod(cluster, "batch-1", "3g.20gb")
    before = spares(cluster)
    waiting = pod(cluster, "batch-2", "3g.20gb")
    cluster.restart()
    cluster.settle()
    assert spares(cluster) == before != []
    assert not cluster.where(waiting)


def test_it_ends_with_the_setting_and_with_its_queue_s_maximum(cluster: SlicerCluster) -> None:
    cluster.queue("serving")
    cluster.settle()
    assert spares(cluster) == []
    cluster.queue("serving", spare={"3g.20gb": 2}, maximum="20Gi")
    cluster.settle()
    assert len(spares(cluster)) == 1


def test_pods_that_waited_before_the_setting_are_asked_about_if_they_name_an_owner(cluster: SlicerCluster) -> None:
    cluster.queue("serving")
    cluster.settle()
    first = run(cluster, pod(cluster, "batch-1", "7g.40gb"))
    alone = pod(cluster, "alone", "3g.20gb", namespace="serving")
    served = pod(cluster, "svc-1-a", "3g.20gb", **SERVICE)
    cluster.queue("serving", spare={"3g.20gb": 1})
    cluster.settle()
    cluster.slicer.handle(PodDeleted(first.uid))
    cluster.slicer.decide()
    assert {each.maker for each in unknown_owners(cluster.slicer)} <= {SERVICE["maker"]}
    gone(cluster, first)
    assert cluster.where(alone)
    assert cluster.where(served)


def test_it_leaves_a_cordoned_node(cluster: SlicerCluster) -> None:
    (place,) = spares(cluster)
    cluster.node(place[0], cordoned=True)
    cluster.settle()
    assert spares(cluster) == []


def test_nothing_is_asked_or_due_without_the_setting() -> None:
    cluster = SlicerCluster()
    cluster.pass_time(0)
    cluster.node("n1")
    pod(cluster, "svc-1-a", "3g.20gb", **SERVICE)
    spare = next(each for each in cluster.slicer.proposers if isinstance(each, Spares))
    assert not list(spare.unknown_owners)
    assert spare.next_due is None
    assert not cluster.slicer.state.may_take_back


def test_the_images_of_its_last_pod_come_to_another_node_once(cluster: SlicerCluster) -> None:
    cluster.node("n2")
    cluster.pulls = False
    served = run(cluster, pod(cluster, "svc-1-a", "7g.40gb", **SERVICE))
    cluster.queue("serving", spare={"7g.40gb": 1})
    cluster.settle()
    assert cluster.where(served)[0][0] != spares(cluster)[0][0]
    assert cluster.image_pulls == {served.uid: spares(cluster)[0][0]}
    cluster.pulls = True
    cluster.settle()
    assert not cluster.image_pulls
    cluster.pass_time(3600)
    cluster.settle()
    assert not cluster.image_pulls


def test_the_images_of_a_pod_come_to_the_node_of_its_reserved_slots(cluster: SlicerCluster) -> None:
    cluster.queue("serving")
    cluster.pulls = False
    run(cluster, pod(cluster, "batch-1", "7g.40gb", deadline=900.0))
    waits = pod(cluster, "whole", "7g.40gb")
    cluster.pass_time(61)
    cluster.settle()
    assert waits.uid in cluster.slicer.state.reservations
    assert not cluster.image_pulls, "the slots are not free for long"
    cluster.pass_time(300)
    cluster.settle()
    assert cluster.image_pulls == {waits.uid: "n1"}
    cluster.pulls = True
    cluster.settle()
    cluster.pass_time(30)
    cluster.settle()
    assert not cluster.image_pulls, "once is enough"


def test_images_come_for_each_namespace_in_turn() -> None:
    """A gang in one namespace has more reserved pods than are looked at."""
    cluster = SlicerCluster(reserve_after=60)
    cluster.pass_time(0)
    cluster.node("n1", count=16)
    cluster.node("n2", count=16)
    cluster.pulls = False
    for number in range(32):
        run(cluster, pod(cluster, f"batch-{number}", "7g.40gb", deadline=600.0))
    gang = Gang("team-a/gang", "gang", 40)
    for number in range(40):
        cluster.pod(f"a-{number}", "1g.5gb", namespace="team-a", gang=gang, created=rfc3339(cluster.date))
    other = pod(cluster, "b", "7g.40gb", namespace="team-b")
    cluster.pass_time(61)
    cluster.settle()
    reserved = [uid for uid in cluster.slicer.state.reservations if uid in cluster.pods]
    assert (len(reserved), other.uid in reserved) == (41, True)
    assert len(cluster.image_pulls) == PODS
    assert other.uid in cluster.image_pulls


def test_the_images_of_reserved_slots_come_in_time_though_nothing_else_happens() -> None:
    cluster = SlicerCluster(reserve_after=60)
    cluster.pass_time(0)
    cluster.node("n1")
    cluster.settle()
    cluster.pulls = False
    run(cluster, pod(cluster, "batch-1", "7g.40gb", deadline=2000.0))
    waits = pod(cluster, "whole", "7g.40gb")
    cluster.pass_time(61)
    cluster.settle()
    start = cluster.slicer.state.reservations[waits.uid].until
    due = cluster.slicer.next_due
    assert due is not None
    assert cluster.date < due <= start - AHEAD
    cluster.pass_time(start - AHEAD - cluster.date)
    cluster.settle()
    assert cluster.image_pulls == {waits.uid: "n1"}


def test_images_are_pulled_once_though_the_expected_start_moves(cluster: SlicerCluster) -> None:
    cluster.queue("serving")
    cluster.pulls = False
    run(cluster, pod(cluster, "batch-1", "7g.40gb", deadline=AHEAD))
    waits = pod(cluster, "whole", "7g.40gb")
    cluster.pass_time(61)
    cluster.settle()
    images = ReservedImages(cluster.slicer.state)
    assert not list(images.review(frozenset()))
    assert images.pulls == {waits.uid: "n1"}
    images.note_images(waits.uid, NodeName("n1"), "")
    reservation = cluster.slicer.state.reservations[waits.uid]
    start = reservation.until
    for until in (cluster.date + 2 * AHEAD, start):
        reservation.until = until
        assert not list(images.review(frozenset()))
        assert not images.pulls


def test_the_queue_s_page_says_what_is_kept_though_no_pod_waits() -> None:
    cluster = ForecastCluster()
    cluster.node("n1")
    cluster.queue("serving", spare={"3g.20gb": 1, "7g.40gb": 1})
    cluster.settle()
    shown = Queues(QueueReading(page=cluster.forecast()), KueueRows())
    assert list(lines_of(shown))[1:] == [
        "Kept spare for services of queue serving: 1 of 1 3g.20gb",
        "Kept spare for services of queue serving: 0 of 1 7g.40gb",
    ]


def test_a_spare_profile_that_no_card_and_no_model_has_is_a_fault() -> None:
    cluster = ForecastCluster()
    cluster.node("n1")
    unknown = {f"9g.{number}gb": 1 for number in range(80, 100)}
    cluster.queue("serving", spare={"7g.80gb": 1, "3g.20gb": 1, **unknown})
    cluster.pass_time(61)
    cluster.settle()
    (report, *_) = (each for each in reversed(cluster.writes) if isinstance(each, ReportQueue))
    (fault,) = report.status["faults"]  # the definition lets a status have 16
    assert fault.startswith('spec.spare: no card has a profile "9g.80gb"; did you mean "7g.40gb"? the cards have')
    shown = list(lines_of(Queues(QueueReading(page=cluster.forecast()), KueueRows())))
    kept = "Kept spare for services of queue serving: "
    assert any(each.startswith(f'{kept}0 of 1 9g.99gb; no card has a profile "9g.99gb"') for each in shown)
    assert f"{kept}0 of 1 7g.80gb" in shown


def test_whole_cards_are_reserved_and_given_though_two_queues_keep_more_than_there_is() -> None:
    cluster = SlicerCluster(reserve_after=60)
    cluster.pass_time(0)
    for name in ("n1", "n2"):
        cluster.node(name)
    cluster.queue("serving", spare={"3g.20gb": 3})
    cluster.queue("other", spare={"3g.20gb": 2, "7g.40gb": 2})
    cluster.settle()
    assert len(spares(cluster)) == 4
    whole = [pod(cluster, f"whole-{number}", "7g.40gb") for number in range(4)]
    for _ in range(12):
        cluster.pass_time(61)
        cluster.settle()
        for each in [each for each in whole if each.uid in cluster.pods and cluster.where(each)]:
            gone(cluster, each)
    assert not any(each.uid in cluster.pods for each in whole)
    assert len(spares(cluster)) == 4


def test_what_an_agent_records_beyond_the_setting_ends(cluster: SlicerCluster) -> None:
    record = cluster.objects["n1"]["metadata"]["annotations"][RESERVATIONS_ANNOTATION]
    (entry,) = msgspec.json.decode(record)
    forged = [
        {**entry, "podRef": {**entry["podRef"], "uid": uid}, "slices": [{**entry["slices"][0], "start": start}]}
        for uid, start in (("spare-1:3g.20gb:serving", 0), ("spare-0:3g.20gb:nobody", 4))
    ]
    patch = {"metadata": {"annotations": {RESERVATIONS_ANNOTATION: msgspec.json.encode(forged).decode()}}}
    cluster.patch("n1", patch)
    cluster.restart()
    cluster.settle()
    assert list(cluster.slicer.state.reservations.spare) == ["spare-0:3g.20gb:serving"]
    assert cluster.where(pod(cluster, "batch-1", "3g.20gb"))
