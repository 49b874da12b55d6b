"""The operator of the bundle: it applies what its settings say, and a mistake in them changes nothing."""

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from bundle.rights import cluster_rules, namespace_rules
from tests.cli.install.conftest import Place

from tessera.api.names import NODE_GROUPS_MAP
from tessera.cli.base.connection import CommandError
from tessera.cli.install.operator import parse_options
from tessera.cli.install.operator_process import (
    FAILED,
    PERIOD,
    Operator,
    OperatorOptions,
    bundled_objects,
    read_choices,
)
from tessera.clock import LoopClock
from tessera.doctor.manifests import install_manifests
from tessera.driver.registry.credentials import AuthoritiesError
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.resources import CONFIGMAPS, CRDS, DAEMONSETS, EVENTS, NAMESPACES
from tessera.kube.resources.meta import resource_for
from tessera.limits import INSTALL_OPTIONS
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.simulation.virtual_time import run_virtual

HOME = "operators"
RBAC = "rbac.authorization.k8s.io/v1"
OPTIONS = OperatorOptions(namespace=HOME, config_map="tessera-install", image="registry.local/tessera@sha256:1")
#: OpenShift's kind, as far as an object of it can be stored.
CONSTRAINTS = {
    "metadata": {"name": "securitycontextconstraints.security.openshift.io"},
    "spec": {
        "group": "security.openshift.io",
        "scope": "Cluster",
        "names": {
            "kind": "SecurityContextConstraints",
            "plural": "securitycontextconstraints",
            "singular": "securitycontextconstraints",
            "listKind": "SecurityContextConstraintsList",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
POLICY = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"namespace": ""}}


@contextlib.asynccontextmanager
async def running(place: Place, client: Client | None = None) -> AsyncIterator[Operator]:
    """An operator that runs inside the block."""
    admin = place.client()
    await admin.create(NAMESPACES.as_dicts(), {"metadata": {"name": HOME}})
    operator = Operator(OPTIONS, client or admin, place.clock, random.Random(1))
    task = asyncio.create_task(operator.run())
    try:
        yield operator
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(operator: Operator, text: str) -> None:
    """Waits until the reason for not being ready has the text; until it is ready for an empty one."""
    async with asyncio.timeout(60):
        while True:
            reason = operator.unready_reason()
            if (text in reason) if text else not reason:
                return
            await asyncio.sleep(0)


async def settings(place: Place, data: Mapping[str, str]) -> None:
    metadata = {"name": "tessera-install", "namespace": HOME}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}
    await place.client("admin").apply(CONFIGMAPS.as_dicts(), "tessera-install", manifest, HOME)


async def policies(place: Place) -> set[str]:
    return {each["metadata"]["name"] for each in (await place.client().list(resource_for(POLICY))).items}


async def until_policies(place: Place, number: int) -> None:
    async with asyncio.timeout(60):
        while True:
            if len(await policies(place)) == number:
                return
            await asyncio.sleep(0)


async def until_event(place: Place, reason: str, text: str) -> None:
    async with asyncio.timeout(60):
        while True:
            events = (await place.client().list(EVENTS.as_dicts(), HOME)).items
            if any(each["reason"] == reason and text in each["message"] for each in events):
                return
            await asyncio.sleep(0)


async def bundled(place: Place) -> None:
    """The definitions that OLM has made."""
    from bundle.service_version import definition

    await place.client("olm").create(CRDS.as_dicts(), definition())


def test_it_applies_the_objects_of_an_installation_with_its_own_image(place: Place) -> None:
    async def scenario() -> None:
        await bundled(place)
        async with running(place) as operator:
            await until(operator, "")
            agent = await place.client().get(DAEMONSETS.as_dicts(), "tessera-agent", "tessera-system")
            (container,) = agent["spec"]["template"]["spec"]["containers"]
            assert container["image"] == OPTIONS.image

    asyncio.run(scenario())


def test_it_leaves_the_objects_of_the_bundle_to_olm(place: Place) -> None:
    async def scenario() -> None:
        async with running(place) as operator:
            await until(operator, "")
            for each in bundled_objects(install_manifests()):
                with pytest.raises(NotFound):
                    await place.client().get(resource_for(each), each["metadata"]["name"])
            await place.client().get(CRDS, "clusterpolicies.nvidia.com")

    asyncio.run(scenario())


def test_settings_are_followed_and_a_mistake_changes_nothing(place: Place) -> None:
    async def scenario() -> None:
        async with running(place) as operator:
            await until(operator, "")
            await settings(place, {"options": "--without network-policies # the mesh has its own"})
            await until_policies(place, 0)
            await settings(place, {"options": "--without network-polices"})
            await until(operator, "ConfigMap operators/tessera-install: options: Invalid value for '--without'")
            assert not await policies(place)
            await until_event(place, FAILED, "Invalid value for '--without'")
            await place.client().delete(CONFIGMAPS, "tessera-install", HOME)
            await until_policies(place, 3)
            await until(operator, "")

    asyncio.run(scenario())


def test_a_namespace_that_is_missing_is_named(place: Place) -> None:
    values = "devicePlugin: {config: {name: device-plugin-config}}"

    async def scenario() -> None:
        async with running(place) as operator:
            await until(operator, "")
            await settings(place, {"options": "--namespace gpu", "values.yaml": values})
            await until(operator, 'there is no namespace "gpu" for the ConfigMaps')

    asyncio.run(scenario())


async def operators_client(place: Place) -> Client:
    """A client with the rights that the bundle gives the operator, and no others."""
    rbac = "rbac.authorization.k8s.io"
    user = f"system:serviceaccount:{HOME}:tessera-operator"
    for kind, namespace, rules in (
        ("ClusterRole", None, cluster_rules()),
        ("Role", HOME, namespace_rules("tessera-install")),
    ):
        metadata = {"name": "tessera-operator", **({"namespace": namespace} if namespace else {})}
        role = {"apiVersion": f"{rbac}/v1", "kind": kind, "metadata": metadata, "rules": rules}
        reference = {"apiGroup": rbac, "kind": kind, "name": "tessera-operator"}
        subjects = [{"kind": "ServiceAccount", "name": "tessera-operator", "namespace": HOME}]
        binding = {**role, "kind": f"{kind}Binding", "roleRef": reference, "subjects": subjects}
        binding.pop("rules")
        for each in (role, binding):
            await place.client().create(resource_for(each), each, namespace)
    return place.client("tessera-install", UserInfo(name=user, groups=("system:authenticated",)))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"options": "--mig-evict --replace-failed 2 --pull-secret ngc-secret"},
        {
            "options": "--without agent-policy --without driver-policy --without namespace-policy --without pin-policy"
            " --without flow-schemas --without network-policies --device-access off"
        },
        {"values.yaml": "driver: {version: '550'}\nmigManager: {config: {name: custom-mig-config}}"},
        {"values.yaml": "devicePlugin: {config: {create: true, name: mps-config, data: {a: 'version: v1'}}}"},
        {"options": "--no-drivers"},
    ],
    ids=["default", "options", "without", "named", "made", "no drivers"],
)
def test_the_rights_of_the_bundle_are_enough(data: dict[str, str], place: Place) -> None:
    async def scenario() -> None:
        await place.client().create(NAMESPACES.as_dicts(), {"metadata": {"name": HOME}})
        await place.client().create(CRDS.as_dicts(), CONSTRAINTS)
        operator = Operator(OPTIONS, await operators_client(place), place.clock, random.Random(1))
        await operator.apply({})
        await operator.apply(data)
        await operator.apply({})
        written = {each.resource for each in place.server.audit if each.user.endswith(":tessera-operator")}
        assert "securitycontextconstraints.security.openshift.io" in written

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            {"option": ""},
            'key "option" is unknown; the keys are options, values.yaml, ca.crt, groups.yaml, repairs.yaml',
        ),
        ({"options": "--devices"}, "options: No such option '--devices'"),
        ({"options": "--values x.yaml"}, "options: --values has no effect here; write the file's content into the key"),
        ({"options": "--dry-run"}, "options: --dry-run has no effect here; the operator always writes"),
        (
            {"options": "--registry-ca a.crt"},
            "--registry-ca has no effect here; write the certificates into the key ca.crt",
        ),
        (
            {"options": "--repairs mine.yaml"},
            "--repairs has no effect here; write the file's content into the key repairs.yaml",
        ),
        (
            {"options": "--node-groups groups.yaml"},
            "--node-groups has no effect here; write the file's content into the key groups.yaml",
        ),
        ({"options": "--image x"}, "--image has no effect here; the operator installs its own image"),
        ({"options": "-o yaml"}, "-o has no effect here"),
        ({"options": "yaml"}, "options: Got unexpected extra argument (yaml)"),
        ({"options": "--help"}, "--help has no effect here; tessera install --help lists the options"),
        ({"options": "'"}, "options: No closing quotation"),
        ({"options": "#" * (INSTALL_OPTIONS + 1)}, "at most 16384 are read"),
        ({"options": "--issuer Issuer/x"}, "--issuer needs --certificate cert-manager"),
        ({"options": "--certificate cert-manager --issuer x"}, "neither Issuer/NAME nor ClusterIssuer/NAME"),
        ({"values.yaml": "mig: {strategy: two}"}, 'the key "values.yaml" has mistakes'),
    ],
)
def test_mistakes_are_named(data: Mapping[str, str], text: str) -> None:
    with pytest.raises(CommandError, match=re.escape(text)):
        read_choices(data, "")


def test_node_groups_are_a_key_of_their_own() -> None:
    text = "groups: [{name: a, selector: {pool: a}, cards: {model: T4, kind: whole}}]"
    assert read_choices({"groups.yaml": text}, "").node_groups == text
    with pytest.raises(CommandError, match=re.escape('the key "groups.yaml": group "a": ')):
        read_choices({"groups.yaml": text.replace("T4", "T5")}, "")


def test_an_immutable_config_map_is_told_with_the_next_step_and_nothing_else_changes(place: Place) -> None:
    async def scenario() -> None:
        text = "groups: [{name: a, selector: {pool: a}, cards: {model: T4, kind: whole}}]"
        await bundled(place)
        async with running(place) as operator:
            await settings(place, {"groups.yaml": text})
            await operator.apply({"groups.yaml": text})
            before = await policies(place)
            await place.client("editor").merge_patch(CONFIGMAPS, NODE_GROUPS_MAP, {"immutable": True}, "tessera-system")
            await settings(place, {"groups.yaml": text.replace("T4", "L40S"), "options": "--without network-policies"})
            await until(operator, "is immutable, so groups.yaml cannot be replaced; nothing was changed; delete it, ")
            assert await policies(place) == before

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["", "groups: []"])
def test_a_key_that_names_no_group_is_to_be_removed(text: str) -> None:
    with pytest.raises(
        CommandError, match=r'the key "groups\.yaml": names no group; .*, or remove the key groups\.yaml$'
    ):
        read_choices({"groups.yaml": text}, "")


def test_certificates_that_are_none_are_refused() -> None:
    with pytest.raises(AuthoritiesError, match=r'the key "ca\.crt" has no certificate'):
        read_choices({"ca.crt": "x"}, "")


def test_the_container_names_its_place_and_its_image() -> None:
    environment = {"POD_NAMESPACE": "here", "RELATED_IMAGE_TESSERA": "image"}
    found: Any = parse_options(["--http-port=8081"], environment)
    assert found == OperatorOptions(namespace="here", config_map="tessera-install", image="image", http_port=8081)


class VirtualPlace(Place):
    """An API server on virtual time."""

    def __init__(self) -> None:
        self.clock: Any = LoopClock(1_700_000_000.0)
        self.server = ApiServer(self.clock)


def test_a_failed_round_is_repeated_and_what_others_change_comes_back_within_a_minute() -> None:
    async def scenario() -> None:
        place = VirtualPlace()
        await place.client().create(NAMESPACES.as_dicts(), {"metadata": {"name": HOME}})
        client = await operators_client(place)
        bound = resource_for({"apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": {}})
        binding = await place.client().get(bound, "tessera-operator")
        await place.client().delete(bound, "tessera-operator")
        operator = Operator(OPTIONS, client, place.clock, random.Random(1))
        task = asyncio.create_task(operator.run())
        await place.clock.sleep(30)
        assert "forbidden" in operator.unready_reason()
        binding["metadata"].pop("resourceVersion")
        await place.client().create(bound, binding)
        await place.clock.sleep(PERIOD)
        assert operator.unready_reason() == ""
        kind = resource_for(POLICY)
        await place.client().delete(kind, "tessera-agent", "tessera-system")
        await place.clock.sleep(PERIOD + 1)
        assert "tessera-agent" in await policies(place)
        task.cancel()
        await asyncio.wait({task})

    run_virtual(scenario())


def test_settings_that_it_may_not_read_are_named_and_nothing_is_applied() -> None:
    async def scenario() -> None:
        place = VirtualPlace()
        nobody = UserInfo(name="nobody", groups=("system:authenticated",))
        operator = Operator(OPTIONS, place.client("tessera-install", nobody), place.clock, random.Random(1))
        task = asyncio.create_task(operator.run())
        await place.clock.sleep(30)
        assert operator.unready_reason().startswith("ConfigMap operators/tessera-install cannot be read: ")
        assert not await policies(place)
        task.cancel()
        await asyncio.wait({task})

    run_virtual(scenario())
