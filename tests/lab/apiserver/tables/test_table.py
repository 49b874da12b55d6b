"""The columns of ``kubectl get``: pod status, columns of built-in kinds, columns that a CRD defines."""

from typing import Any

import pytest

from tessera.clock import parse_rfc3339
from tessera_lab.apiserver.interfaces import Obj
from tessera_lab.apiserver.schemas import schema_library
from tessera_lab.apiserver.tables.core_columns import format_duration, summarize_pod
from tessera_lab.apiserver.tables.table import CustomColumns, builtin_columns

CREATED = "2026-01-31T12:00:00Z"
NOW = parse_rfc3339(CREATED) + 300


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (11400, "3h10m"),
        (8 * 3600, "8h"),
        (48 * 3600, "2d"),
        (52 * 3600, "2d4h"),
        (8 * 86400, "8d"),
        (800 * 86400, "2y70d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def pod(*, spec: Any = None, meta: Any = None, **status: Any) -> Obj:
    return {
        "metadata": {"name": "p", "creationTimestamp": CREATED, **(meta or {})},
        "spec": {"containers": [{"name": "a"}, {"name": "b"}], **(spec or {})},
        "status": {"phase": "Pending", **status},
    }


def state(name: str = "a", *, ready: bool = False, restarts: int = 0, **state: Any) -> Obj:
    return {"name": name, "ready": ready, "restartCount": restarts, "state": state}


GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
INIT = {"initContainers": [{"name": "i"}, {"name": "j"}]}
SIDECAR = {"initContainers": [{"name": "s", "restartPolicy": "Always"}]}
RUNNING: dict[str, Any] = {"running": {"startedAt": CREATED}}


@pytest.mark.parametrize(
    ("obj", "ready", "status"),
    [
        (pod(), "0/2", "Pending"),
        (pod(conditions=[GATED]), "0/2", "SchedulingGated"),
        (pod(containerStatuses=[state(waiting={"reason": "ContainerCreating"})]), "0/2", "ContainerCreating"),
        (
            pod(phase="Running", containerStatuses=[state(ready=True, **RUNNING), state("b", ready=True, **RUNNING)]),
            "2/2",
            "Running",
        ),
        (pod(phase="Running", meta={"deletionTimestamp": CREATED}), "0/2", "Terminating"),
        (pod(phase="Failed", meta={"deletionTimestamp": CREATED}), "0/2", "Failed"),
        (pod(phase="Running", reason="NodeLost", meta={"deletionTimestamp": CREATED}), "0/2", "Unknown"),
        (pod(phase="Failed", reason="UnexpectedAdmissionError"), "0/2", "UnexpectedAdmissionError"),
        (pod(containerStatuses=[state(terminated={"exitCode": 0, "reason": "Completed"})]), "0/2", "Completed"),
        (pod(containerStatuses=[state(terminated={"exitCode": 1, "reason": "Error"})]), "0/2", "Error"),
        (pod(containerStatuses=[state(terminated={"exitCode": 3})]), "0/2", "ExitCode:3"),
        (pod(containerStatuses=[state(terminated={"exitCode": 137, "signal": 9})]), "0/2", "Signal:9"),
        (pod(containerStatuses=[state(waiting={"reason": "CrashLoopBackOff"})]), "0/2", "CrashLoopBackOff"),
        (
            pod(
                phase="Running",
                containerStatuses=[
                    state(terminated={"exitCode": 0, "reason": "Completed"}),
                    state("b", ready=True, **RUNNING),
                ],
            ),
            "1/2",
            "NotReady",
        ),
        (pod(spec=INIT, initContainerStatuses=[state("i", **RUNNING), state("j")]), "0/2", "Init:0/2"),
        (
            pod(spec=INIT, initContainerStatuses=[state("i", terminated={"exitCode": 0}), state("j", **RUNNING)]),
            "0/2",
            "Init:1/2",
        ),
        (
            pod(spec=INIT, initContainerStatuses=[state("i", terminated={"exitCode": 1, "reason": "Error"})]),
            "0/2",
            "Init:Error",
        ),
        (
            pod(spec=INIT, initContainerStatuses=[state("i", waiting={"reason": "ImagePullBackOff"})]),
            "0/2",
            "Init:ImagePullBackOff",
        ),
        (
            pod(
                phase="Running",
                spec=SIDECAR,
                initContainerStatuses=[{**state("s", ready=True, **RUNNING), "started": True}],
                containerStatuses=[state(ready=True, **RUNNING), state("b", **RUNNING)],
            ),
            "2/3",
            "Running",
        ),
    ],
)
def test_pod_status(obj: Obj, ready: str, status: str) -> None:
    found = summarize_pod(obj, NOW)
    assert (found.ready, found.status) == (ready, status)


def test_restarts_say_when_the_last_one_was() -> None:
    ended = {"lastState": {"terminated": {"finishedAt": CREATED}}}
    one, two = {**state(restarts=2, **RUNNING), **ended}, state("b", restarts=1, **RUNNING)
    assert summarize_pod(pod(containerStatuses=[one, two]), NOW).restarts == "3 (5m ago)"
    assert summarize_pod(pod(containerStatuses=[two]), NOW).restarts == "1"


def row(group: str, kind: str, obj: Obj) -> dict[str, Any]:
    obj.setdefault("metadata", {}).setdefault("name", "n")
    obj["metadata"].setdefault("creationTimestamp", CREATED)
    columns = builtin_columns(group, kind)
    headers = [each["name"] for each in columns.definitions()]
    cells = columns.cells(obj, NOW)
    assert len(headers) == len(cells)
    return dict(zip(headers, cells, strict=True))


TEMPLATE = {"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}}
SELECTOR = {"matchLabels": {"app": "w"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["b", "a"]}]}


@pytest.mark.parametrize(
    ("group", "kind", "obj", "wanted"),
    [
        (
            "apps",
            "Deployment",
            {"spec": {"replicas": 3, "template": TEMPLATE, "selector": SELECTOR}, "status": {"readyReplicas": 2}},
            {"Ready": "2/3", "Up-to-date": 0, "Images": "x,y", "Selector": "app=w,k in (a,b)"},
        ),
        ("apps", "ReplicaSet", {"spec": {"replicas": 0}, "status": {"replicas": 1}}, {"Desired": 0, "Current": 1}),
        ("apps", "StatefulSet", {"spec": {}, "status": {"readyReplicas": 1}}, {"Ready": "1/1"}),
        ("apps", "DaemonSet", {"status": {"numberReady": 4}}, {"Ready": 4, "Node Selector": "<none>"}),
        (
            "batch",
            "Job",
            {
                "spec": {"completions": 2},
                "status": {
                    "succeeded": 2,
                    "startTime": CREATED,
                    "completionTime": "2026-01-31T12:00:09Z",
                    "conditions": [{"type": "Complete", "status": "True"}],
                },
            },
            {"Status": "Complete", "Completions": "2/2", "Duration": "9s"},
        ),
        ("batch", "Job", {"spec": {"parallelism": 3}, "status": {"startTime": CREATED}}, {"Completions": "0/1 of 3"}),
        (
            "",
            "Node",
            {
                "metadata": {"labels": {"node-role.kubernetes.io/gpu": ""}},
                "spec": {"unschedulable": True},
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "nodeInfo": {"kubeletVersion": "v1.32.0"},
                    "addresses": [{"type": "InternalIP", "address": "10.1.1.1"}],
                },
            },
            {
                "Status": "Ready,SchedulingDisabled",
                "Roles": "gpu",
                "Version": "v1.32.0",
                "Internal-IP": "10.1.1.1",
                "External-IP": "<none>",
            },
        ),
        ("", "Node", {}, {"Status": "Unknown", "Roles": "<none>"}),
        ("", "Namespace", {"status": {"phase": "Active"}}, {"Status": "Active", "Age": "5m"}),
        ("", "ConfigMap", {"data": {"a": "b"}, "binaryData": {"c": ""}}, {"Data": 2}),
        ("", "Secret", {"type": "Opaque", "data": {"a": "b"}}, {"Type": "Opaque", "Data": 1}),
        ("", "ServiceAccount", {}, {"Age": "5m"}),
        (
            "",
            "Service",
            {"spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80, "nodePort": 30080}], "type": "NodePort"}},
            {"Type": "NodePort", "External-IP": "<none>", "Port(s)": "80:30080/TCP"},
        ),
        ("", "Service", {"spec": {"type": "LoadBalancer"}}, {"External-IP": "<pending>", "Port(s)": "<none>"}),
        (
            "",
            "Endpoints",
            {"subsets": [{"addresses": [{"ip": f"10.0.0.{n}"} for n in range(5)], "ports": [{"port": 1}]}]},
            {"Endpoints": "10.0.0.0:1,10.0.0.1:1,10.0.0.2:1 + 2 more..."},
        ),
        (
            "",
            "ResourceQuota",
            {"status": {"hard": {"pods": "3", "limits.cpu": "2"}, "used": {"pods": "1"}}},
            {"Request": "pods: 1/3", "Limit": "limits.cpu: 0/2"},
        ),
        (
            "",
            "Event",
            {
                "involvedObject": {"kind": "Pod", "name": "p"},
                "type": "Warning",
                "reason": "Full",
                "message": "no slice \n",
                "count": 3,
                "firstTimestamp": CREATED,
                "lastTimestamp": "2026-01-31T12:04:00Z",
                "source": {"component": "tessera"},
            },
            {"Last Seen": "60s", "First Seen": "5m", "Object": "pod/p", "Message": "no slice", "Count": 3},
        ),
        (
            "events.k8s.io",
            "Event",
            {
                "regarding": {"kind": "Pod", "name": "p"},
                "note": "hello",
                "eventTime": "2026-01-31T12:04:30.000000Z",
                "reportingController": "tessera",
            },
            {"Last Seen": "30s", "Object": "pod/p", "Message": "hello", "Source": "tessera", "Count": 1},
        ),
        ("coordination.k8s.io", "Lease", {"spec": {"holderIdentity": "me"}}, {"Holder": "me"}),
        ("rbac.authorization.k8s.io", "Role", {}, {"Created At": CREATED}),
        (
            "rbac.authorization.k8s.io",
            "RoleBinding",
            {
                "roleRef": {"kind": "Role", "name": "r"},
                "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "namespace": "n", "name": "s"}],
            },
            {"Role": "Role/r", "Users": "u", "ServiceAccounts": "n/s"},
        ),
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", {"webhooks": [{}]}, {"Webhooks": 1}),
        ("apiextensions.k8s.io", "CustomResourceDefinition", {}, {"Created At": CREATED}),
        ("scheduling.k8s.io", "PriorityClass", {"value": 5}, {"Value": 5, "Global-Default": False}),
        (
            "policy",
            "PodDisruptionBudget",
            {"spec": {"minAvailable": 1}},
            {"Min Available": "1", "Max Unavailable": "N/A"},
        ),
        ("authorization.k8s.io", "SubjectAccessReview", {}, {"Name": "n", "Age": "5m"}),
    ],
)
def test_columns_of_other_kinds(group: str, kind: str, obj: Obj, wanted: dict[str, Any]) -> None:
    assert wanted.items() <= row(group, kind, obj).items()


@pytest.mark.parametrize("kind", sorted(schema_library().kinds))
def test_every_kind_shows_an_object_that_has_nothing_but_a_name(kind: str) -> None:
    group, _, name = kind.split("/")
    assert row(group, name, {})["Name"] == "n"


COLUMNS: list[dict[str, Any]] = [
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Slices", "type": "integer", "jsonPath": ".spec.slices", "priority": 1, "description": "how many"},
    {"name": "Used", "type": "date", "jsonPath": ".status.used"},
    {"name": "Map", "type": "string", "jsonPath": ".spec.map"},
]


def test_columns_that_a_crd_defines() -> None:
    obj: Obj = {
        "metadata": {"name": "x"},
        "spec": {"slices": 3.0, "map": {"a": 1}},
        "status": {"used": CREATED, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    columns = CustomColumns(COLUMNS)
    assert [(each["name"], each["type"], each["priority"]) for each in columns.definitions()] == [
        ("Name", "string", 0),
        ("Ready", "string", 0),
        ("Slices", "integer", 1),
        ("Used", "date", 0),
        ("Map", "string", 0),
    ]
    assert columns.definitions()[1]["description"].startswith("Custom resource definition column (in JSONPath format)")
    assert columns.cells(obj, NOW) == ["x", "True", 3, "5m", '{"a":1}']


def test_cells_whose_path_leads_nowhere_are_empty() -> None:
    assert CustomColumns(COLUMNS).cells({"metadata": {"name": "x"}}, NOW) == ["x", None, None, None, None]


def test_a_crd_without_columns_shows_name_and_age() -> None:
    columns = CustomColumns([])
    assert [each["name"] for each in columns.definitions()] == ["Name", "Age"]
    assert columns.cells({"metadata": {"name": "x", "creationTimestamp": CREATED}}, NOW) == ["x", "5m"]
