"""Objects with junk in their fields: refused or stored, they spoil themselves only, and the lab lives.

Each example takes a sound object of one kind and puts a value of some sort into one of its fields, or many. The API
server answers without an error of its own, and afterwards a plain pod still comes to run on every node.
"""

import itertools
import logging
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera.clock import LoopClock
from tessera.kube.requests import Request
from tessera.kube.resources import PODS
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.cluster.cluster import ADMIN, ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.simulation.virtual_time import run_virtual

Obj = dict[str, Any]

#: Media types of objects, and of patches.
TYPES = ("json", "yaml", "vnd.kubernetes.protobuf")
PATCHES = ("merge-patch+json", "strategic-merge-patch+json", "json-patch+json", "apply-patch+yaml")
#: Objects of one life of the cluster.
BATCH = 12

POD: Obj = {
    "metadata": {
        "name": "x",
        "labels": {"app": "x"},
        "annotations": {"controller.kubernetes.io/pod-deletion-cost": "1", "lab.tessera.dev/ignores-sigterm": ""},
        "finalizers": [],
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
        ],
    },
    "spec": {
        "nodeSelector": {"a": "b"},
        "nodeName": "node-1",
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 1,
        "activeDeadlineSeconds": 5,
        "priority": 0,
        "hostname": "h",
        "tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 1}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "t",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {}},
            }
        ],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["1"]}]}]
                }
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "t", "labelSelector": {"matchLabels": {"a": "b"}}, "namespaces": ["n"]}
                ]
            },
        },
        "volumes": [
            {"name": "v", "secret": {"secretName": "s"}},
            {"name": "p", "persistentVolumeClaim": {"claimName": "c"}},
        ],
        "initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always", "command": ["sleep", "1"]}],
        "containers": [
            {
                "name": "c",
                "image": "example.com/a:1",
                "command": ["sleep", "1"],
                "args": ["$(A)"],
                "env": [
                    {"name": "A", "value": "$(B)"},
                    {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    {"name": "F", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "R", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1"}}},
                ],
                "envFrom": [{"configMapRef": {"name": "m"}, "prefix": "P_"}],
                "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP", "name": "http"}],
                "resources": {"limits": {"cpu": "1", "example.com/d": "1"}, "requests": {"cpu": "1"}},
                "readinessProbe": {"httpGet": {"port": 80}, "periodSeconds": 1},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }
        ],
        "schedulingGates": [],
        "overhead": {"cpu": "1m"},
    },
}
NODE: Obj = {
    "metadata": {"name": "junk", "labels": {"a": "b"}},
    "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": "2020-01-01T00:00:00Z"}]},
    "status": {
        "capacity": {"cpu": "1", "memory": "1Gi", "pods": "10"},
        "allocatable": {"cpu": "1"},
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}],
        "addresses": [{"type": "InternalIP", "address": "1.2.3.4"}],
    },
}
TEMPLATE = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": POD["spec"]["containers"]}}
WORKLOAD = {"replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": TEMPLATE}
KINDS: dict[str, tuple[str, Obj]] = {
    "pod": ("/api/v1/namespaces/default/pods", POD),
    "node": ("/api/v1/nodes", NODE),
    "configmap": (
        "/api/v1/namespaces/default/configmaps",
        {"metadata": {"name": "m"}, "data": {"k": "v"}, "binaryData": {"b": "YQ=="}, "immutable": False},
    ),
    "secret": (
        "/api/v1/namespaces/default/secrets",
        {"metadata": {"name": "s"}, "data": {"k": "YQ=="}, "stringData": {"t": "x"}, "type": "Opaque"},
    ),
    "deployment": (
        "/apis/apps/v1/namespaces/default/deployments",
        {"metadata": {"name": "d"}, "spec": {**WORKLOAD, "strategy": {"rollingUpdate": {"maxSurge": "25%"}}}},
    ),
    "statefulset": ("/apis/apps/v1/namespaces/default/statefulsets", {"metadata": {"name": "f"}, "spec": WORKLOAD}),
    "daemonset": (
        "/apis/apps/v1/namespaces/default/daemonsets",
        {"metadata": {"name": "e"}, "spec": {key: WORKLOAD[key] for key in ("selector", "template")}},
    ),
    "job": (
        "/apis/batch/v1/namespaces/default/jobs",
        {
            "metadata": {"name": "j"},
            "spec": {
                "completions": 1,
                "parallelism": 1,
                "backoffLimit": 1,
                "template": {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}},
            },
        },
    ),
    "service": (
        "/api/v1/namespaces/default/services",
        {"metadata": {"name": "w"}, "spec": {"selector": {"app": "x"}, "ports": [{"port": 80, "targetPort": "http"}]}},
    ),
}

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 1.5, 1e308]),
    st.sampled_from(
        [
            "",
            " ",
            "a",
            "A/B",
            "../..",
            "x" * 300,
            "\x00",
            "\ud7ff",
            "1e99",
            "-1",
            "$(A)$$(",
            "0x10",
            "NaN",
            "{}",
            "metadata.",
        ]
    ),
    st.text(max_size=20),
    st.sampled_from([[], {}, [None], [[]], [{}], {"": ""}, {"a": None}, {"a": {"b": []}}, ["a", "a"]]),
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all fields."""
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        found += places(each, (*at, key))
    return found


def spoilt(value: Any, at: tuple[Any, ...], junk: Any) -> Any:
    """A copy with junk at the place, if the place is still there."""
    if not at:
        return junk
    if not isinstance(value, (dict, list)) or (isinstance(value, list) and at[0] >= len(value)):
        return value
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if isinstance(copy, dict) and at[0] not in copy:
        return value
    copy[at[0]] = spoilt(copy[at[0]], at[1:], junk)
    return copy


@st.composite
def objects(draw: st.DrawFn) -> tuple[str, Obj]:
    path, made = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    for _ in range(draw(st.integers(1, 3))):
        made = spoilt(made, draw(st.sampled_from(places(made) or [("metadata",)])), draw(JUNK))
        if not isinstance(made, dict):
            break
    return path, made


def lives(batch: list[tuple[str, Any]]) -> None:
    """A cluster takes the objects, is left alone for a while, and then does its work."""

    async def story() -> None:
        cluster = SimulatedCluster(parse_nodes("0,0"), clock=LoopClock(1_800_000_000), options=ClusterOptions())
        async with cluster.running():
            api, raw = cluster.client("test"), InProcessTransport(cluster.server, ADMIN)
            await cluster.clock.sleep(0.1)
            for path, made in batch:
                body = msgspec.json.encode(made)
                answer = await raw.request(Request(method="POST", path=path, headers=JSON, body=body))
                assert cluster.server.panics == 0, (path, made)
                assert answer.status != 500 or b"resourceVersion" in answer.body, (path, made, answer.body)
                await cluster.clock.sleep(1)
            await cluster.clock.sleep(30)
            assert cluster.server.panics == 0, batch
            for name in cluster.nodes:
                spec = {"containers": [{"name": "c", "image": "a"}], "nodeSelector": {"kubernetes.io/hostname": name}}
                await api.create(PODS.as_dicts(), {"metadata": {"name": f"late-{name}"}, "spec": spec}, "default")
            await cluster.clock.sleep(60)
            for name in cluster.nodes:
                pod = await api.get(PODS.as_dicts(), f"late-{name}", "default")
                assert pod["status"].get("phase") in {"Running", "Succeeded"}, (batch, pod["status"])

    run_virtual(story())


JSON = {"content-type": "application/json"}


@pytest.fixture(autouse=True)
def quiet() -> Any:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(st.lists(objects(), min_size=BATCH, max_size=BATCH))
def test_objects_with_junk_spoil_themselves_only(batch: list[tuple[str, Any]]) -> None:
    lives(batch)


BODIES = (
    b"",
    b"null",
    b"[]",
    b"1e400",
    b'"text"',
    b"{",
    b"\xff\xfe",
    b'{"metadata": null}',
    b'{"metadata": 5}',
    b'{"metadata": {"name": 5}}',
    b'{"metadata": {"name": "a", "labels": {"a": 5}}}',
    b'{"metadata": {"name": "a"}, "spec": "x"}',
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b"[" * 20_000,
)


@pytest.mark.parametrize(
    ("method", "media"),
    [
        *itertools.product(["POST", "PUT", "DELETE"], [f"application/{each}" for each in TYPES]),
        *itertools.product(["PATCH"], [f"application/{each}" for each in PATCHES]),
    ],
)
def test_bodies_that_are_none_are_refused(media: str, method: str) -> None:
    async def story() -> None:
        cluster = SimulatedCluster([], clock=LoopClock(1_800_000_000))
        async with cluster.running():
            raw = InProcessTransport(cluster.server, ADMIN)
            await cluster.clock.sleep(0.1)
            path = "/api/v1/namespaces/default/pods" + ("" if method == "POST" else "/a")
            query = [("fieldManager", "m")] if method == "PATCH" else []
            for body in BODIES:
                request = Request(method=method, path=path, headers={"content-type": media}, body=body, query=query)
                answer = await raw.request(request)
                assert 400 <= answer.status < 500, (body[:60], answer)
                assert cluster.server.panics == 0, body[:60]

    run_virtual(story())


def test_yaml_that_unfolds_without_end_is_refused() -> None:
    async def story() -> None:
        cluster = SimulatedCluster([], clock=LoopClock(1_800_000_000))
        raw = InProcessTransport(cluster.server, ADMIN)
        levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
        levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
        body = "\n".join(["metadata: {name: a}", *levels]).encode()
        request = Request(
            method="POST",
            path="/api/v1/namespaces/default/configmaps",
            headers={"content-type": "application/yaml"},
            body=body,
        )
        answer = await raw.request(request)
        assert (answer.status, b"excessive aliasing" in answer.body) == (400, True)

    run_virtual(story())
