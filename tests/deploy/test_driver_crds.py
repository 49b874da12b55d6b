"""The definitions of ClusterPolicy and NVIDIADriver: what they let pass, what they refuse, how kubectl shows it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.conftest import ROOT, rendered

from tessera.api.problems import FileRefused
from tessera.clock import SystemClock
from tessera.gpu_operator.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.gpu_operator.keys import NVIDIA_DRIVER, POLICY, Leaf, Shape
from tessera.gpu_operator.policy_objects import read_cluster_policy, read_nvidia_driver
from tessera.kube.client import Client
from tessera.kube.errors import Invalid
from tessera.kube.resources.meta import Resource
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.installation.install import apply_manifests

FOLDER = ROOT / "deploy" / "crds"
ADMIN = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))
KINDS = [(CLUSTER_POLICIES, POLICY, ("driver",)), (NVIDIA_DRIVERS, NVIDIA_DRIVER, ())]

#: Values that the definitions judge, and NVIDIA's have too.
JUDGED: dict[str, Any] = {
    "version": "580.65.06",
    "imagePullPolicy": "Always",
    "imagePullSecrets": ["pull"],
    "kernelModuleType": "open",
    "driverType": "gpu",
    "args": ["init"],
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "labels": {"a": "b"},
    "annotations": {"a": "b"},
    "nodeSelector": {"a": "b"},
    "maxUnavailable": "25%",
    "maxParallelUpgrades": 2,
    "podSelector": "a=b",
    "priorityClassName": "high",
}


def definition(resource: Resource[Any]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((FOLDER / f"{resource.plural}.yaml").read_text(), yaml.CSafeLoader)
    return found


def served(story: Callable[[Client], Awaitable[None]]) -> None:
    """A server that has the definitions."""

    async def run() -> None:
        clock = SystemClock()
        client = Client(InProcessTransport(ApiServer(clock), ADMIN), field_manager="admin", clock=clock)
        await apply_manifests(client, [definition(resource) for resource, _, _ in KINDS])
        await story(client)

    asyncio.run(run())


def example(shape: Shape, key: str = "") -> Any:
    """A value with every key that upstream has, each in turn where it is a mapping."""
    if key in JUDGED:
        return JUDGED[key]
    if key.endswith(("Seconds", "Threshold")):
        return 1
    match shape:
        case Leaf.FLAG:
            return True
        case Leaf.TEXT:
            return "text"
        case Leaf.ENV:
            return [{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
        case Leaf.ANY:
            return {"any": [{"thing": 1}]}
        case _:
            return {name: example(below, name) for name, below in shape.items()}


def whole(resource: Resource[Any], shape: Shape) -> Any:
    """A spec with every key that upstream has, that keeps the rules between them."""
    return example(shape) | ({"default": False} if resource is NVIDIA_DRIVERS else {})


def obj(resource: Resource[Any], spec: Any) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "a"}, "spec": spec}


@pytest.mark.parametrize(("resource", "shape", "_at"), KINDS)
def test_the_definition_is_of_what_the_client_asks_for(resource: Resource[Any], shape: Shape, _at: Any) -> None:
    crd = definition(resource)
    assert crd["metadata"]["name"] == f"{resource.plural}.{resource.group}"
    assert (crd["spec"]["group"], crd["spec"]["scope"]) == (resource.group, "Cluster")
    assert crd["spec"]["names"]["kind"] == resource.kind
    (version,) = crd["spec"]["versions"]
    assert (version["name"], version["subresources"]) == (resource.version, {"status": {}})
    columns = [each["name"] for each in version["additionalPrinterColumns"]]
    assert (columns[0], columns[-1]) == ("Status", "Age")
    assert crd["metadata"]["labels"]["app.kubernetes.io/part-of"] == "tessera"


def test_short_names_are_nvidias() -> None:
    assert definition(NVIDIA_DRIVERS)["spec"]["names"]["shortNames"] == ["nvd", "nvdriver", "nvdrivers"]


@pytest.mark.parametrize(("resource", "shape", "_at"), KINDS)
def test_every_key_that_upstream_has_is_kept(resource: Resource[Any], shape: Shape, _at: Any) -> None:
    spec = whole(resource, shape)

    async def story(client: Client) -> None:
        made = await client.create(resource, obj(resource, spec))
        assert made["spec"] == spec

    served(story)


@pytest.mark.parametrize("branch", [525, "525", "525.125.06"])
def test_a_branch_may_be_a_number(branch: Any) -> None:
    named = {"repository": "quay.io/vemporop", "image": "nvidia-gpu-driver", "version": branch}

    async def story(client: Client) -> None:
        made = await client.create(CLUSTER_POLICIES, obj(CLUSTER_POLICIES, {"driver": named}))
        assert read_cluster_policy(made).policy.source.version == str(branch)

    served(story)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"usePrecompiled": "yes"}, "usePrecompiled"),
    ({"kernelModuleType": "opne"}, "kernelModuleType"),
    ({"imagePullPolicy": "always"}, "imagePullPolicy"),
    ({"imagePullSecrets": [{"name": "a"}]}, "imagePullSecrets"),
    ({"version": 525.6}, "version"),
    ({"startupProbe": {"periodSeconds": 0}}, "startupProbe.periodSeconds"),
    ({"upgradePolicy": {"maxParallelUpgrades": -1}}, "upgradePolicy.maxParallelUpgrades"),
    ({"upgradePolicy": {"drain": {"enable": 1}}}, "upgradePolicy.drain.enable"),
    ({"env": [{"value": "a"}]}, "env"),
    ({"rdma": {"enabled": "true"}}, "rdma.enabled"),
    ({"args": "init"}, "args"),
]


@pytest.mark.parametrize(("fields", "path"), WRONG, ids=[path for _, path in WRONG])
@pytest.mark.parametrize(("resource", "_shape", "at"), KINDS)
def test_what_the_server_can_judge_it_refuses_and_so_does_the_reader(
    resource: Resource[Any], _shape: Shape, at: tuple[str, ...], fields: dict[str, Any], path: str
) -> None:
    named = {"repository": "r.io", "image": "driver", "version": "580", **fields}
    written = obj(resource, {at[0]: named} if at else named)
    where = ".".join(("spec", *at, path))

    async def story(client: Client) -> None:
        with pytest.raises(Invalid) as refused:
            await client.create(resource, written)
        assert where in str(refused.value)

    served(story)
    with pytest.raises(FileRefused) as refused:
        (read_cluster_policy if at else read_nvidia_driver)(written)
    assert all(each.path.startswith(where) for each in refused.value.problems)


REPLACE = ("create an NVIDIADriver that has it", "then delete this one")
KINDS_OF_DRIVER = ("driverType cannot be changed", *REPLACE)
FINISHED_MODULES = ("usePrecompiled cannot be changed", *REPLACE)
NOT_BOTH = (
    "default and nodeSelector cannot both be set",
    "the default is for the nodes that no other NVIDIADriver selects",
    "remove one of them",
)
CHANGES: list[tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    ({"driverType": "gpu"}, {"driverType": "vgpu"}, ('spec.driverType: Invalid value: "vgpu": ', *KINDS_OF_DRIVER)),
    ({}, {"driverType": "vgpu"}, ('spec.driverType: Invalid value: "vgpu": ', *KINDS_OF_DRIVER)),
    ({"driverType": "vgpu"}, {"driverType": None}, ('spec.driverType: Invalid value: "gpu": ', *KINDS_OF_DRIVER)),
    (
        {"usePrecompiled": True},
        {"usePrecompiled": False},
        ("spec.usePrecompiled: Invalid value: false: ", *FINISHED_MODULES),
    ),
    ({"default": True}, {"nodeSelector": {"a": "b"}}, ("spec: Invalid value: ", *NOT_BOTH)),
]


@pytest.mark.parametrize(("before", "change", "facts"), CHANGES)
def test_what_nvidias_definition_lets_nobody_change_nobody_changes_here(
    before: dict[str, Any], change: dict[str, Any], facts: tuple[str, ...]
) -> None:
    async def story(client: Client) -> None:
        made = await client.create(NVIDIA_DRIVERS, obj(NVIDIA_DRIVERS, before))
        with pytest.raises(Invalid, match="is invalid") as refused:
            await client.merge_patch(NVIDIA_DRIVERS, "a", {"spec": change})
        for fact in facts:
            assert fact in str(refused.value)
        assert await client.get(NVIDIA_DRIVERS, "a") == made

    served(story)


@pytest.mark.parametrize(
    "change",
    [
        {"driverType": "gpu"},
        {"usePrecompiled": None},
        {"version": "580.65.06", "nodeSelector": {"a": "b"}},
        {"default": True, "nodeSelector": None},
    ],
)
def test_all_else_of_a_driver_may_be_changed(change: dict[str, Any]) -> None:
    async def story(client: Client) -> None:
        await client.create(NVIDIA_DRIVERS, obj(NVIDIA_DRIVERS, {"usePrecompiled": True, "nodeSelector": {"c": "d"}}))
        changed = await client.merge_patch(NVIDIA_DRIVERS, "a", {"spec": change})
        assert changed["metadata"]["generation"] == (1 if change == {"driverType": "gpu"} else 2)

    served(story)


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from schemas(below, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")


@pytest.mark.parametrize(("resource", "_shape", "_at"), KINDS)
def test_every_mapping_below_spec_keeps_what_it_does_not_know_and_every_key_says_what_it_is(
    resource: Resource[Any], _shape: Shape, _at: Any
) -> None:
    (version,) = definition(resource)["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for path, schema in schemas(spec, "spec"):
        assert "anyOf" not in schema, f"{path}: kube-apiserver would refuse one wrong value in three sentences more"
        if schema.get("type") == "object" and "additionalProperties" not in schema:
            assert schema.get("x-kubernetes-preserve-unknown-fields") is True, path
        for name, below in schema.get("properties", {}).items():
            known = name.endswith(("Seconds", "Threshold")) or path.endswith(("[]", "Config", "virtualTopology"))
            assert known or below.get("description") or path.endswith(("gds", "gdrcopy")), f"{path}.{name}"


@pytest.mark.parametrize("name", ["deploy", "examples/openshift"])
def test_an_installation_has_both(name: str) -> None:
    for resource, _, _ in KINDS:
        assert rendered(name).one("CustomResourceDefinition", f"{resource.plural}.{resource.group}")


def test_the_articles_example_is_taken_as_written() -> None:
    written = yaml.load(Path(ROOT / "examples" / "drivers" / "cluster-policy.yaml").read_text(), yaml.CSafeLoader)

    async def story(client: Client) -> None:
        made = await client.create(CLUSTER_POLICIES, written)
        policy = read_cluster_policy(made).policy
        assert (policy.use_precompiled, policy.source.version) == (True, "525.125.06")

    served(story)
