"""Nodes and pods as the rollout sees them."""

from typing import Any

import msgspec

from tessera.driver.node_facts import UpgradeRecord, UpgradeState
from tessera.driver.rollout.node_view import DesiredDriver, DriverPodView, NodeView, PodView, PullPod, PullProgress

OLD, NEW, OTHER = "0000000001", "0000000002", "0000000003"
POLICY = "ClusterPolicy/cluster-policy"
NOW = 1_800_000_000.0


def wanted(set_: str = NEW, **more: Any) -> DesiredDriver:
    return DesiredDriver(policy=POLICY, set=set_, image=f"registry.local/driver@sha256:{set_}", **more)


def node(name: str = "n1", **more: Any) -> NodeView:
    """A node that serves with the old set and should have the new one."""
    given: dict[str, Any] = {
        "uid": f"uid-{name}",
        "version": "1",
        "desired": wanted(),
        "current": OLD,
        "drivers": (DriverPodView(set=more.get("current", OLD), ready=True),),
        "validated": True,
    }
    return NodeView(name=name, **(given | more))


def pulled(pull: PullProgress = PullProgress.PRESENT, fault: str = "", set_: str = NEW) -> tuple[PullPod, ...]:
    return (PullPod(uid="pull-1", namespace="tessera-system", name="pull", set=set_, pull=pull, fault=fault),)


def gpu_pod(name: str = "train", **more: Any) -> PodView:
    return PodView(uid=f"uid-{name}", namespace="default", name=name, gpu=True, **more)


def record(**more: Any) -> UpgradeRecord:
    given: dict[str, Any] = {"previous": OLD, "target": NEW, "since": NOW, "began": NOW, "offered": True}
    return UpgradeRecord(**(given | more))


def begun(state: UpgradeState, **more: Any) -> NodeView:
    """A node under way, cordoned by us."""
    given: dict[str, Any] = {"record": record(), "unschedulable": True, "cordoned_by_us": True}
    return node(state=state, **(given | more))


def changed(state: UpgradeState, **more: Any) -> NodeView:
    """A node whose label names the new set, its users of cards paused."""
    given: dict[str, Any] = {
        "record": record(changed=True),
        "current": NEW,
        "pause_label": "paused-for-driver-upgrade",
        "offers_gpus": False,
        "validated": False,
    }
    return begun(state, **(given | more))


def replaced(view: NodeView, **changes: Any) -> NodeView:
    return msgspec.structs.replace(view, **changes)
