"""Forged nodes, pods and objects through everything else that reads them: admission, drivers, provisioning, agents."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from tests.controller.informers.forging import NODES, PODS, Forger
from tests.support.searching import examples

from tessera.agent.slices.events import (
    ExecutorReady,
    InitialSyncDone,
    PodChanged,
    SliceJournal,
    WaitUntil,
)
from tessera.agent.slices.instaslice_status import instaslice_event, status_patch
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.instaslice import Instaslice
from tessera.api.names import PodUid
from tessera.api.nodes.node_marks import DRIVER_ANNOTATION, UPGRADE_STATE_LABEL
from tessera.driver.node_facts import RECORD_ANNOTATION, read_node_facts
from tessera.driver.planning.cluster_plan import plan_cluster
from tessera.driver.planning.interface import ClusterSnapshot
from tessera.driver.pod_facts import read_node_pods
from tessera.driver.policies import PolicyObjects, select_policy
from tessera.driver.rollout.node_view import DesiredDriver, read_node_view
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.codec import ChangeLine, Codec
from tessera.kube.resources import Node, Pod
from tessera.provisioning.milestones import PROVISIONING_ANNOTATION
from tessera.provisioning.startup_deadline import StartupDeadline, judge_startup
from tessera.provisioning.timestamps import read_node, read_pod
from tessera.provisioning.tracker import Tracker
from tessera.webhook.capabilities import Capabilities
from tessera.webhook.main import GpuNodeWatcher
from tessera.webhook.review import Reviewer, ReviewError

NOW = 1_800_000_000.0
TIMES = ("2026-01-01T00:00:00Z", "", "x", "0001-01-01T00:00:00", "9999-12-31T23:59:59-14:00", "2026-01-01", None, 5)


def decoded(kind: Any, item: dict[str, Any]) -> Any:
    """The object as a mirror has it; None for one that does not decode."""
    line = Codec(kind).decode_line(msgspec.json.encode({"type": "ADDED", "object": item}))
    return line.object if isinstance(line, ChangeLine) else None


class Readers:
    """All that the forger writes, read once by everybody."""

    def __init__(self, seed: int) -> None:
        self.forger = Forger(seed)
        self.nodes = [node for name in NODES if (node := decoded(Node, self.node(name))) is not None]
        self.pods = [pod for name in PODS if (pod := decoded(Pod, self.pod(name))) is not None]
        self.objects = [item for name in NODES if (item := decoded(Instaslice, self.forger.instaslice(name)))]

    def node(self, name: str) -> dict[str, Any]:
        forger, found = self.forger, self.forger.node(name)
        notes = {
            DRIVER_ANNOTATION: forger.pick("{}", '{"phase":"ready"}', "[" * 9000, "\ud7ff", '{"phase":5}'),
            RECORD_ANNOTATION: forger.pick("{}", '{"since":1e308}', "{" * 9000, '{"policy":null}'),
            PROVISIONING_ANNOTATION: forger.pick('{"at":{"ready":1e308}}', "{}", '{"at":{"x":-1e308},"uid":"u"}', "["),
        }
        if isinstance(found["metadata"].get("annotations"), dict):
            found["metadata"]["annotations"] |= notes
        if isinstance(found["metadata"].get("labels"), dict):
            found["metadata"]["labels"] |= {
                UPGRADE_STATE_LABEL: forger.pick("upgrade-done", "pod-restart-required", "x"),
                "nvidia.com/gpu.present": forger.pick("true"),
            }
        found["metadata"]["creationTimestamp"] = forger.pick(*TIMES)
        if isinstance(found["status"], dict) and isinstance(found["status"].get("conditions"), list):
            for each in found["status"]["conditions"]:
                if isinstance(each, dict):
                    each["lastTransitionTime"] = forger.pick(*TIMES)
        return found

    def pod(self, name: str) -> dict[str, Any]:
        forger, found = self.forger, self.forger.pod(name)
        found["metadata"]["creationTimestamp"] = forger.pick(*TIMES)
        found["metadata"]["labels"] = forger.pick({}, {"app.kubernetes.io/name": "tessera-driver"})
        found["metadata"]["namespace"] = forger.pick("default", "tessera-system")
        if isinstance(found["status"], dict):
            state = {"running": {"startedAt": forger.pick(*TIMES)}}
            found["status"]["startTime"] = forger.pick(*TIMES)
            found["status"]["containerStatuses"] = forger.pick([{"name": "driver", "ready": True, "state": state}], [])
        return found

    def admission(self) -> None:
        capabilities = Capabilities()
        gpus = GpuNodeWatcher(capabilities)
        for node in self.nodes:
            gpus.node_changed(WatchEvent(EventKind.ADDED, node))
        for item in self.objects:
            gpus.instaslice_changed(WatchEvent(EventKind.ADDED, item))
        reviewer = Reviewer(capabilities)
        for name in PODS:
            pod = self.forger.pod(name)
            notes = {"tessera.dev/gpu-memory": self.forger.pick("10Gi", "-1", "9" * 99), "tessera.dev/product": "A1|A1"}
            pod["metadata"]["annotations"] = self.forger.pick(notes)
            review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
            kind = {"group": "", "version": "v1", "kind": "Pod"}
            request = {"uid": "u", "operation": "CREATE", "kind": kind, "object": pod}
            try:
                msgspec.json.decode(reviewer.review(msgspec.json.encode({**review, "request": request})))
            except ReviewError:
                continue

    def drivers(self) -> None:
        policy = {"metadata": {"name": "p", "creationTimestamp": self.forger.pick(*TIMES), "uid": "u"}}
        driver = {key: self.forger.anything() for key in ("enabled", "version", "repository", "upgradePolicy")}
        policy["spec"] = self.forger.pick({"driver": self.forger.pick(driver)}, {})
        facts = {node.metadata.name: read_node_facts(node) for node in self.nodes}
        pods = {name: read_node_pods(self.pods) for name in facts}
        labels = {name: each.labels for name, each in facts.items() if each.is_gpu}
        governance = select_policy(PolicyObjects(cluster_policies=[policy], nvidia_drivers=[policy]), labels)
        plan_cluster(ClusterSnapshot(nodes=facts, pods=pods, selection=governance, sets={}, now=NOW))
        for node in self.nodes:
            read_node_view(node, self.pods, DesiredDriver(policy="p"), validated=lambda _: False, now=NOW)

    def provisioning(self) -> None:
        tracker = Tracker()
        deadline = StartupDeadline(seconds=900.0, began=NOW - 100, grace=60.0)
        for pod in self.pods:
            found = read_pod(pod)
            if found is not None:
                tracker.observe_pod(found, NOW)
        for node in self.nodes:
            tracker.observe_node(read_node(node), NOW, live=self.forger.chance.random() < 0.5)
            record = tracker.records.get(node.metadata.name)
            judge_startup(node, record, keys=("k",), deadline=deadline, now=NOW)
        tracker.pop_saves()

    def agent(self) -> None:
        book = SliceStateMachine(SliceJournal())
        for pod in self.pods:
            book.handle(PodChanged(PodUid(pod.metadata.uid), ended=False))
        for item in self.objects:
            book.handle(instaslice_event(item))
            book.handle(InitialSyncDone())
            for gpu in ("GPU-0", "GPU-1"):
                (instruction,) = book.handle(ExecutorReady(gpu, 0.0))
                assert isinstance(instruction, WaitUntil)
            msgspec.json.encode(status_patch(item, book.table, item.status.node_resources))


READERS: dict[str, Callable[[Readers], None]] = {
    "admission": Readers.admission,
    "drivers": Readers.drivers,
    "provisioning": Readers.provisioning,
    "agent": Readers.agent,
}


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=examples(200))
@given(seed=st.integers(0, 2**64 - 1))
def test_forged_objects_end_no_reader(reader: str, seed: int) -> None:
    READERS[reader](Readers(seed))


@pytest.mark.soak
@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=5_000)
@given(seed=st.integers(0, 2**64 - 1))
def test_many_forged_objects_end_no_reader(reader: str, seed: int) -> None:
    READERS[reader](Readers(seed))
