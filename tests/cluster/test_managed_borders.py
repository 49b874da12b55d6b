"""Whole cards of managed namespaces where others are faster, controllers die, and labels come and go."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.cluster.test_neighbours import of, replicas, run, slice_condition
from tests.cluster.test_withdrawn_at_bind import Moment
from tests.support.mortal_process import MortalController, die_at, fate_of
from tests.support.virtual_lab import Scenario, VirtualLab, manifest

from tessera.api.names import GATE
from tessera.api.nodes.node_cards import labels_say_gpu
from tessera.explain.explanation import parse_query
from tessera.explain.query import explain
from tessera.kube.errors import ApiError
from tessera.kube.resources import JOBS, NAMESPACES, PODS
from tessera.kube.resources.meta import Resource
from tessera_lab.cluster.options import parse_nodes

ONE, TWO, ALL = ({"nvidia.com/gpu": count} for count in (1, 2, 4))
#: More writes of the controller than the story has; the test proves that it is.
WRITES = 8
Managed = Callable[..., Any]
POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "", False, dict[str, Any]
)


def outside(lab: VirtualLab, limits: dict[str, int]) -> Callable[[], Any]:
    """A pod of another namespace that kube-scheduler binds meanwhile."""

    async def act() -> None:
        await lab.client.create(NAMESPACES, {"metadata": {"name": "free"}})
        await lab.client.create(PODS.as_dicts(), manifest("faster", limits), "free")
        while not (await lab.client.get(PODS, "faster", "free")).spec.node_name:
            await lab.clock.sleep(0.1)

    return act


async def label(lab: VirtualLab, value: str | None) -> None:
    """Sets the label of the namespace default, and waits until the controller has surely seen it."""
    await lab.client.merge_patch(NAMESPACES, "default", {"metadata": {"labels": {"tessera.dev/placement": value}}})
    await lab.clock.sleep(5)


def test_a_pod_whose_cards_a_faster_one_took_is_made_anew_and_starts_when_they_are_free(managed: Managed) -> None:
    moment = Moment("PATCH", "/pods/pinned-", "schedulingGates")

    async def scenario(lab: VirtualLab) -> None:
        moment.act = outside(lab, ALL)
        await replicas(lab, "pinned", 1, TWO)
        await lab.until(lambda: of_reason(lab, "SliceReclaimed"), "it is evicted", 300.0)
        (taken,) = of_reason(lab, "SliceReclaimed")
        assert "where its cards were promised" in taken.message
        assert "Insufficient nvidia.com/gpu" in taken.message
        await lab.until(lambda: [lab.gates(pod.metadata.name) for pod in of(lab, "pinned")] == [[GATE]], "made anew")
        await lab.client.delete(PODS, "faster", "free", grace_seconds=0)
        assert await run(lab, "pinned", 1) == ["node-1"]
        assert moment.came

    managed(scenario, cluster_type=moment.cluster)


def of_reason(lab: VirtualLab, reason: str) -> list[Any]:
    return [event for event in lab.events.cache.values() if event.reason == reason]


def test_a_pod_without_an_owner_is_told_that_its_cards_went_to_the_next(managed: Managed) -> None:
    moment = Moment("PATCH", "/pods/pinned", "schedulingGates")

    async def scenario(lab: VirtualLab) -> None:
        moment.act = outside(lab, ALL)
        await lab.create("pinned", TWO)
        await lab.until(lambda: slice_condition(lab, "pinned") == ("False", "SliceReclaimed"), "it is told", 300.0)
        (found,) = (await explain(lab.client, lab.clock, parse_query("pinned"), "default")).answers
        assert found.case == "taken-back"
        assert found.help == ("delete the pod and create it again: kubectl delete pod -n default pinned",)
        await lab.create("next", ALL)
        await lab.until(lambda: lab.events_of("next", "SliceWaiting"), "the next waits for the faster one alone")
        (told,) = lab.events_of("next", "SliceWaiting")
        assert "a pod of another namespace (nvidia.com/gpu) on node node-1" in told.message
        await lab.delete("pinned")
        await lab.client.delete(PODS, "faster", "free", grace_seconds=0)
        await lab.running("next")

    managed(scenario, cluster_type=moment.cluster)


def gang(at: int, *, after: bool) -> Scenario:
    """A gang of two starts beside a single pod, and ends; the cards of all are used once."""

    async def scenario(lab: VirtualLab) -> bool:
        fate = fate_of(lab)
        fate.arm(at, after=after)
        for number in range(2):
            item = manifest(f"train-{number}", ONE)
            item["metadata"] |= {
                "labels": {"tessera.dev/gang": "train"},
                "annotations": {"tessera.dev/gang-size": "2"},
            }
            await lab.client.create(PODS.as_dicts(), item, "default")
        await lab.create("single", TWO)
        await lab.running("train-0", "train-1", "single")
        held = [each for name in ("train-0", "train-1", "single") for each in lab.devices(name)]
        assert len(set(held)) == len(held) == 4
        await lab.create("waits", ONE)
        await lab.until(lambda: lab.events_of("waits", "SliceWaiting"), "all cards are taken")
        await lab.delete("train-0")
        await lab.running("waits")
        return fate.struck

    return scenario


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.soak)])
def test_the_controller_may_die_at_any_write(managed: Managed, when: str) -> None:
    def outlives(at: int) -> bool:
        return bool(managed(gang(at, after=when == "after"), cluster_type=MortalController))

    die_at(range(1, WRITES + 1), outlives, every=4)


def test_pods_that_wait_keep_their_turn_when_the_label_goes_and_new_ones_are_the_schedulers(managed: Managed) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("first", ALL)
        await lab.running("first")
        await lab.create("waits", ALL)
        await lab.until(lambda: lab.events_of("waits", "SliceWaiting"), "it waits behind the gate")
        await label(lab, None)
        await lab.create("later", ONE)
        await lab.until(lambda: lab.pod("later"), "it is created")
        assert lab.gates("later") == []
        await lab.delete("first")
        await lab.running("later")
        await lab.delete("later")
        await lab.running("waits")

    managed(scenario)


def test_pods_from_before_the_label_are_the_schedulers_and_count_as_taken(managed: Managed) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await label(lab, None)
        await lab.create("runs", TWO)
        await lab.running("runs")
        await lab.create("pending", ALL)
        await label(lab, "managed")
        assert lab.gates("pending") == []
        await lab.create("new", TWO)
        await lab.running("new")
        await lab.create("newer", ONE)
        await lab.until(lambda: lab.events_of("newer", "SliceWaiting"), "all cards are taken")
        for name in ("runs", "new"):
            await lab.delete(name)
        await lab.until(lambda: lab.ready("pending") or lab.ready("newer"), "one of them starts")

    managed(scenario)


def test_the_label_of_a_pod_has_no_effect(managed: Managed) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await label(lab, None)
        item = manifest("labelled", ONE)
        item["metadata"]["labels"] = {"tessera.dev/placement": "managed"}
        await lab.client.create(PODS.as_dicts(), item, "default")
        await lab.running("labelled")
        assert "kubernetes.io/hostname" not in lab.existing_pod("labelled").spec.node_selector

    managed(scenario)


def test_a_pod_with_slices_and_whole_cards_is_placed_by_its_slices(managed: Managed) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("mixed", ONE, {"nvidia.com/mig-1g.5gb": 1})
        await lab.until(lambda: lab.events_of("mixed", "SliceWaiting"), "no node has both")
        assert lab.gates("mixed") == [GATE]
        assert "1g.5gb" in lab.events_of("mixed", "SliceWaiting")[0].message
        await lab.create("next", ALL)
        await lab.running("next")

    managed(scenario)


def test_a_job_of_more_cards_than_any_node_has_is_refused_itself(managed: Managed) -> None:
    async def scenario(lab: VirtualLab) -> None:
        def job(name: str, count: int) -> dict[str, Any]:
            template = {"spec": manifest(name, {"nvidia.com/gpu": count}, restartPolicy="Never")["spec"]}
            return {"metadata": {"name": name}, "spec": {"template": template}}

        with pytest.raises(ApiError, match=r"spec\.template: .* could hold 5 x .* the largest holds 4 x"):
            await lab.client.create(JOBS.as_dicts(), job("five", 5), "default")
        await lab.client.create(JOBS.as_dicts(), job("four", 4), "default")
        await lab.until(lambda: any(lab.ready(pod.metadata.name) for pod in lab.pods.cache.values()), "its pod runs")

    managed(scenario)


def test_a_pod_that_a_node_which_has_just_joined_will_hold_is_not_refused(managed: Managed) -> None:
    """It has no label of a GPU yet: feature discovery and the agent come to it later."""

    async def scenario(lab: VirtualLab) -> None:
        (eight,) = parse_nodes("8xA100-40GB")
        lab.cluster.add_node(msgspec.structs.replace(eight, name="joins"))
        await lab.until(lambda: "joins" in lab.nodes.cache, "it has registered")
        assert not labels_say_gpu(lab.existing_node("joins").metadata.labels)
        await lab.create("eight", {"nvidia.com/gpu": 8})
        await lab.running("eight")
        assert lab.existing_pod("eight").spec.node_name == "joins"
        with pytest.raises(ApiError, match="the largest holds 8 x"):
            await lab.create("nine", {"nvidia.com/gpu": 9})

    managed(scenario, nfd_seconds=30)


def test_a_pinned_pod_has_a_mark_that_no_author_can_write_beforehand(managed: Managed) -> None:
    """A pod of another namespace with a copied mark, which kube-scheduler cannot place, holds no cards."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.create("pinned", ONE)
        await lab.running("pinned")
        mark = lab.existing_pod("pinned").metadata.annotations["tessera.dev/pinned"]
        assert mark == lab.existing_pod("pinned").metadata.uid
        await lab.client.create(NAMESPACES, {"metadata": {"name": "free"}})
        forged = manifest("forged", TWO | {"cpu": 5000}, nodeSelector={"kubernetes.io/hostname": "node-1"})
        forged["metadata"]["annotations"] = {"tessera.dev/pinned": mark}
        await lab.client.create(PODS.as_dicts(), forged, "free")
        await lab.clock.sleep(5)
        await lab.create("rest", {"nvidia.com/gpu": 3})
        await lab.running("rest")

    managed(scenario)


def test_a_mark_written_later_holds_no_cards_even_without_the_policy(managed: Managed) -> None:
    """The author of a pod of another namespace, which kube-scheduler cannot place, marks it with its own UID."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(NAMESPACES, {"metadata": {"name": "free"}})
        forged = manifest("forged", TWO | {"cpu": 5000}, nodeSelector={"kubernetes.io/hostname": "node-1"})
        made = await lab.client.create(PODS.as_dicts(), forged, "free")
        mark = {"metadata": {"annotations": {"tessera.dev/pinned": made["metadata"]["uid"]}}}
        with pytest.raises(ApiError, match="only Tessera's controller sets it"):
            await lab.client.merge_patch(PODS, "forged", mark, "free")
        await lab.client.delete(POLICY_BINDINGS, "tessera-pins")
        await lab.client.merge_patch(PODS, "forged", mark, "free")
        await lab.clock.sleep(5)
        await lab.create("rest", ALL)
        await lab.until(lambda: not lab.gates("rest"), "it is pinned at once", 10.0)
        await lab.running("rest")

    managed(scenario)
