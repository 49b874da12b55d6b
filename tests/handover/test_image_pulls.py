"""Pods that bring images to a node: what they are, and when their images are there."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName, PodUid
from tessera.controller.slicing.proposals import Proposer
from tessera.handover.hand_over import HandOver
from tessera.handover.image_pulls import (
    NAMESPACE_PULLS,
    PULLED_IMAGES,
    PULLS,
    PullState,
    choose_next,
    choose_yielding,
    find_wanted,
    judge,
    make_pull_pod,
    refusal_of,
)
from tessera.handover.reserved_images import PODS
from tessera.handover.satellite import HandOverSatellite
from tessera.kube.resources import Pod


def pod_of(*images: str) -> Pod:
    containers = [{"name": f"c{n}", "image": image} for n, image in enumerate(images)]
    return msgspec.convert({"metadata": {"name": "p", "uid": "u-1"}, "spec": {"containers": containers}}, Pod)


def pull_pod(*states: dict[str, Any] | None, phase: str = "Pending") -> Pod:
    made = make_pull_pod(pod_of("a:1", "b:1"), NodeName("n1"), "nonce")
    statuses = [{"name": f"image-{n}", **({"state": state} if state else {})} for n, state in enumerate(states)]
    return msgspec.convert({**made, "status": {"phase": phase, "containerStatuses": statuses}}, Pod)


def test_nothing_of_an_image_runs_and_no_token_or_card_is_given() -> None:
    spec = make_pull_pod(pod_of("a:1", "a:1", "b:1"), NodeName("n1"), "nonce")["spec"]
    assert spec["nodeName"] == "n1"
    assert spec["automountServiceAccountToken"] is False
    assert [each["image"] for each in spec["containers"]] == ["a:1", "b:1"]
    for each in spec["containers"]:
        assert each["command"] == ["/no-command-nonce"]
        assert not any("nvidia" in name for name in each["resources"]["limits"])
        assert each["securityContext"]["runAsNonRoot"] is True


def test_the_secrets_of_the_accounts_in_its_namespace_are_not_added() -> None:
    """The API server adds an account's pull secrets to a pod that names none."""
    spec = make_pull_pod(pod_of("registry.example/private:1"), NodeName("n1"), "nonce")["spec"]
    assert spec["imagePullSecrets"] == [{"name": "none"}]


def test_the_images_of_one_pod_are_bounded() -> None:
    many = pod_of(*(f"i:{n}" for n in range(200)))
    assert len(make_pull_pod(many, NodeName("n1"), "nonce")["spec"]["containers"]) == PULLED_IMAGES


def test_a_namespace_whose_images_never_come_leaves_pulls_to_others() -> None:
    hostile = {PodUid(f"h{number}"): "hostile" for number in range(40)}
    assert len(choose_next(hostile, set())) == NAMESPACE_PULLS
    both = {**hostile, PodUid("u"): "team"}
    assert choose_next(both, set(list(hostile)[:NAMESPACE_PULLS])) == ["u"]
    many = {PodUid(f"m{number}"): f"ns{number}" for number in range(40)}
    assert len(choose_next(many, {PodUid("m3")})) == PULLS - 1


def test_refused_images_leave_their_pulls_to_those_that_nobody_has_tried() -> None:
    refused = {PodUid(f"r{number}"): f"ns{number // NAMESPACE_PULLS}" for number in range(PULLS)}
    assert not choose_yielding(refused, set(refused), set(refused))
    for namespace in ("ns0", "other"):
        wanted = {**refused, PodUid("u"): namespace}
        present = set(refused) - set(choose_yielding(wanted, set(refused), set(refused)))
        assert choose_next(wanted, present, set(refused))[0] == "u"


class Wants(Proposer):
    """A proposer that wants images."""

    def __init__(self, **pulls: str) -> None:
        self._pulls = {PodUid(uid): NodeName(node) for uid, node in pulls.items()}

    @property
    def pulls(self) -> Mapping[PodUid, NodeName]:
        return self._pulls


def test_the_images_that_an_update_waits_for_come_before_those_of_reserved_slots() -> None:
    reserved, update = Wants(r="n1", u="n2"), Wants(u="n1")
    assert list(find_wanted([reserved, update]).items()) == [("u", "n1"), ("r", "n1")]
    made = HandOverSatellite().make(SlicerCluster().slicer.state)
    assert isinstance(made[-1], HandOver)
    assert PODS < PULLS, "some are left for updates"


THERE = {"terminated": {"reason": "StartError", "exitCode": 128}}
COMING = {"waiting": {"reason": "ContainerCreating"}}


@pytest.mark.parametrize(
    ("states", "done"),
    [
        ((), False),
        ((None, None), False),
        ((THERE,), False),
        ((THERE, COMING), False),
        ((THERE, THERE), True),
        ((THERE, {"running": {"startedAt": "2026-01-01T00:00:00Z"}}), True),
        (({"waiting": {"reason": "RunContainerError"}}, THERE), True),
    ],
)
@pytest.mark.parametrize("secrets", [False, True])
def test_it_is_done_when_each_image_is_there(
    states: tuple[dict[str, Any] | None, ...], done: bool, secrets: bool
) -> None:
    assert judge(pull_pod(*states), with_secrets=secrets) is (PullState.DONE if done else PullState.COMING)


def refused(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "RegistryUnavailable"])
def test_a_refused_image_may_come_after_the_switch_only_to_a_pod_with_secrets(reason: str) -> None:
    pod = pull_pod(THERE, refused(reason))
    assert judge(pod, with_secrets=True) is PullState.DONE
    assert judge(pod, with_secrets=False) is PullState.REFUSED
    assert refusal_of(pod) == reason


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("failed to resolve reference docker.io/library/svc:3: docker.io/library/svc:3: not found", PullState.REFUSED),
        ("reading manifest 3 in registry.example/svc: manifest unknown", PullState.REFUSED),
        ("pull access denied, repository does not exist or may require authorization: not found", PullState.DONE),
        ("unexpected status from HEAD request: 401 Unauthorized", PullState.DONE),
        ("dial tcp: i/o timeout", PullState.DONE),
    ],
)
def test_an_image_that_does_not_exist_comes_to_no_pod(message: str, found: PullState) -> None:
    pod = pull_pod(THERE, refused("ImagePullBackOff", message))
    assert judge(pod, with_secrets=True) is found
    assert refusal_of(pod) == message


def test_a_pod_that_has_ended_is_done_and_one_that_has_ended_at_its_deadline_is_made_again() -> None:
    pod = pull_pod(phase="Failed")
    assert judge(pod, with_secrets=False) is PullState.DONE
    late = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, reason="DeadlineExceeded"))
    assert judge(late, with_secrets=False) is PullState.GONE


def test_models_that_a_pod_mounts_as_images_come_too() -> None:
    model = {"name": "model", "image": {"reference": "models/a:1", "pullPolicy": "Always"}}
    spec = {"containers": [{"name": "c", "image": "a:1"}], "volumes": [model, model | {"name": "b"}, {"name": "e"}]}
    pod = msgspec.convert({"metadata": {"name": "p", "uid": "u-1"}, "spec": spec}, Pod)
    made = make_pull_pod(pod, NodeName("n1"), "nonce")["spec"]
    assert [each["image"]["reference"] for each in made["volumes"]] == ["models/a:1"]
    (container,) = made["containers"]
    assert [each["name"] for each in container["volumeMounts"]] == [each["name"] for each in made["volumes"]]
