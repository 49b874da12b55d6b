"""The view of a node, read from Node and pods."""

from typing import Any

import msgspec
import pytest
from tests.driver.rollout.conftest import NEW, OLD, record, wanted

from tessera.clock import parse_rfc3339
from tessera.driver.node_facts import UpgradeState, referenced_sets
from tessera.driver.rollout.node_view import DriverPodView, NodeView, PullProgress, read_node_view, read_pod_view
from tessera.kube.codec import Codec
from tessera.kube.resources import NODES, PODS, Condition, Node, Pod

CREATED = "2027-01-15T08:00:00Z"
NOW = parse_rfc3339(CREATED) + 60


def a_node() -> Node:
    item = {
        "metadata": {
            "name": "n1",
            "uid": "u",
            "resourceVersion": "7",
            "labels": {},
            "annotations": {"nvidia.com/gpu-driver-upgrade-requested": "true"},
        },
        "spec": {"unschedulable": True},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "8", "nvidia.com/mig-1g.5gb": "2"},
        },
    }
    return Codec(NODES.type).decode_object(_json(item))


def a_pod(*, labels: dict[str, str] | None = None, owner: str = "ReplicaSet", status: Any = None, **spec: Any) -> Pod:
    owners = [{"kind": owner, "name": "o", "controller": True}] if owner else []
    namespace = "tessera-system" if "app.kubernetes.io/name" in (labels or {}) else "default"
    metadata = {"name": "p", "namespace": namespace, "uid": "p", "labels": labels or {}, "creationTimestamp": CREATED}
    item = {
        "metadata": {**metadata, "ownerReferences": owners},
        "spec": {"containers": [{"name": "c"}], **spec},
        "status": status or {"phase": "Running"},
    }
    return Codec(PODS.type).decode_object(_json(item))


def _json(item: Any) -> bytes:
    return msgspec.json.encode(item)


def seen(node: Node, *pods: Pod, now: float = NOW) -> NodeView:
    return read_node_view(node, pods, wanted(), validated=lambda set_: set_ == OLD, now=now)


def test_a_node_is_read_from_its_labels_annotations_and_status() -> None:
    view = seen(a_node())
    assert (view.name, view.uid, view.version) == ("n1", "u", "7")
    assert view.requested
    assert view.ready
    assert view.offers_gpus
    assert view.foreign_cordon


def cards(**resources: Any) -> dict[str, Any]:
    return {"containers": [{"name": "c", "resources": resources}]}


@pytest.mark.parametrize(
    ("spec", "uses"),
    [
        (cards(limits={"nvidia.com/gpu": "1"}), True),
        (cards(requests={"nvidia.com/gpu.shared": "1"}), True),
        (cards(limits={"nvidia.com/mig-1g.5gb": "1"}), True),
        ({"initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, True),
        (cards(limits={"nvidia.com/gpu": "0"}), False),
        (cards(limits={"cpu": "1", "amd.com/gpu": "1"}), False),
    ],
)
def test_a_pod_uses_cards_if_any_of_its_containers_asks_for_one(spec: dict[str, Any], uses: bool) -> None:
    assert read_pod_view(a_pod(**spec)).gpu is uses


def test_what_speaks_against_the_eviction_of_a_pod() -> None:
    assert read_pod_view(a_pod(owner="DaemonSet")).stays
    assert read_pod_view(a_pod(owner="", labels={"app.kubernetes.io/name": "tessera-validation"})).stays
    assert not read_pod_view(a_pod(owner="")).controlled
    assert read_pod_view(a_pod(volumes=[{"name": "v", "emptyDir": {}}])).empty_dir
    assert not read_pod_view(a_pod(volumes=[{"name": "v", "configMap": {"name": "c"}}])).empty_dir
    assert read_pod_view(a_pod(labels={"nvidia.com/gpu-driver-upgrade-drain.skip": "true"})).drain_skip


def test_pods_that_have_ended_hold_nothing() -> None:
    ended = a_pod(**cards(limits={"nvidia.com/gpu": "1"}), status={"phase": "Succeeded"})
    assert seen(a_node(), ended).pods == ()


def driver(set_: str = OLD, ready: bool = True, **status: Any) -> Pod:
    labels = {"app.kubernetes.io/name": "tessera-driver", "tessera.dev/driver-set": set_}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return a_pod(labels=labels, owner="DaemonSet", status={"phase": "Running", "conditions": conditions, **status})


def container(reason: str, message: str = "", restarts: int = 0) -> dict[str, Any]:
    waiting = {"waiting": {"reason": reason, "message": message}}
    return {"containerStatuses": [{"name": "driver", "restartCount": restarts, "state": waiting}]}


def test_a_node_works_when_the_pod_of_its_set_alone_is_ready_and_was_validated() -> None:
    node = a_node()
    node.metadata.labels["tessera.dev/driver-set"] = OLD
    assert seen(node, driver()).works
    assert not seen(node, driver(ready=False)).works
    assert not seen(node, driver(), driver(NEW)).works
    node.metadata.labels["tessera.dev/driver-set"] = NEW
    assert not seen(node, driver(NEW)).works


@pytest.mark.parametrize(
    ("status", "after", "told"),
    [
        (container("CrashLoopBackOff", "back-off 2m40s", 5), 60, "container driver ended 5 times. back-off 2m40s"),
        (container("CrashLoopBackOff", "", 4), 60, ""),
        (container("ImagePullBackOff", "not found"), 60, ""),
        (container("ImagePullBackOff", "not found"), 600, "ImagePullBackOff: not found"),
        (container("InvalidImageName", "bad"), 0, "InvalidImageName: bad"),
    ],
)
def test_a_driver_pod_is_given_up_when_it_ends_again_and_again_or_its_image_does_not_come(
    status: dict[str, Any], after: float, told: str
) -> None:
    (found,) = seen(a_node(), driver(ready=False, **status), now=parse_rfc3339(CREATED) + after).drivers
    assert found == DriverPodView(set=OLD, ready=False, fault=f"driver pod p: {told}" if told else "")


PULL_LABELS = {"app.kubernetes.io/name": "tessera-driver-pull", "tessera.dev/driver-pull": NEW}
ENDED = {"containerStatuses": [{"name": "pull", "state": {"terminated": {"exitCode": 0}}}]}


@pytest.mark.parametrize(
    ("status", "pull"),
    [
        ({"phase": "Pending"}, PullProgress.PULLING),
        ({"phase": "Pending", **container("ContainerCreating")}, PullProgress.PULLING),
        ({"phase": "Pending", **container("ErrImagePull")}, PullProgress.PULLING),
        ({"phase": "Pending", **container("ErrImageNeverPull")}, PullProgress.FAILED),
        ({"phase": "Pending", **container("CreateContainerError")}, PullProgress.PRESENT),
        ({"phase": "Succeeded", **ENDED}, PullProgress.PRESENT),
        ({"phase": "Failed", **ENDED}, PullProgress.PRESENT),
        ({"phase": "Failed", "reason": "OutOfpods", "message": "too many pods"}, PullProgress.FAILED),
    ],
)
def test_an_image_is_there_once_kubelet_is_past_its_pull(status: dict[str, Any], pull: PullProgress) -> None:
    assert seen(a_node(), a_pod(labels=PULL_LABELS, owner="", status=status)).pull is pull


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("nvidia.com/gpu-driver-upgrade.skip", "true", "skip=true keeps it out"),
        ("nvidia.com/gpu.deploy.operands", "false", "its label nvidia.com/gpu.deploy.operands is false"),
        ("nvidia.com/gpu.deploy.driver", "false", "its label nvidia.com/gpu.deploy.driver is false"),
        ("nvidia.com/gpu.deploy.driver", "true", ""),
    ],
)
def test_people_keep_nodes_out_by_labels(key: str, value: str, told: str) -> None:
    node = a_node()
    node.metadata.labels[key] = value
    assert told in seen(node).skip_reason


def test_a_state_that_nobody_knows_says_nothing() -> None:
    node = a_node()
    node.metadata.labels["nvidia.com/gpu-driver-upgrade-state"] = "node-maintenance-required"
    assert seen(node).state is UpgradeState.NONE


def test_a_node_refers_to_what_it_has_and_to_what_it_may_go_back_to() -> None:
    assert referenced_sets("changing", record()) == {OLD, NEW}
    assert referenced_sets(OLD, None) == {OLD}
    assert referenced_sets("", None) == frozenset()


@pytest.mark.parametrize("app", ["tessera-driver", "tessera-driver-pull", "tessera-validation"])
def test_pods_elsewhere_with_labels_of_tesseras_say_nothing_and_do_not_stay(app: str) -> None:
    labels = {"app.kubernetes.io/name": app, "tessera.dev/driver-set": OLD, "tessera.dev/driver-pull": NEW}
    own = a_pod(
        labels=labels,
        **cards(limits={"nvidia.com/gpu": "1"}),
        status={"phase": "Pending", **container("InvalidImageName")},
    )
    metadata = msgspec.structs.replace(own.metadata, namespace="tenant")
    view = seen(a_node(), msgspec.structs.replace(own, metadata=metadata))
    assert (view.drivers, view.pulls) == ((), ())
    assert [each.stays for each in view.pods] == [False]


AN_AGENT = a_pod(labels={"app.kubernetes.io/name": "tessera-agent"}, owner="DaemonSet")


@pytest.mark.parametrize(
    ("status", "reason", "pods", "held"),
    [
        ("True", "Advertised", [AN_AGENT], True),
        ("False", "WaitingForKubelet", [AN_AGENT], True),
        ("False", "PausedForDriver", [AN_AGENT], False),
        ("True", "Advertised", [], False),  # the agent is gone, and what it said stays
    ],
)
def test_cards_are_held_by_an_agent_that_is_there(status: str, reason: str, pods: list[Pod], held: bool) -> None:
    told = Condition(type="GpuNodeReady", status=status, reason=reason)
    node = a_node()
    node = msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, conditions=(*node.status.conditions, told))
    )
    assert seen(node, *pods).agent_holds_gpus is held
