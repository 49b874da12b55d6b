"""Drivers in an installation: the objects that it makes, those that it leaves alone, and how they go."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tessera.api.documents import load_document
from tessera.cli.install.apply import AppliedObject, apply_all, apply_drivers
from tessera.cli.install.manifests import InstallChoices, manifests
from tessera.cli.install.preflight import warnings
from tessera.doctor.manifests import install_manifests
from tessera.gpu_operator.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.gpu_operator.policy_objects import find_other_manager
from tessera.gpu_operator.settings_reader import read_settings
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.resources import CRDS

NAMED = "driver: {version: '580.65.06'}"
BY_OBJECTS = "driver: {version: '580.65.06', nvidiaDriverCRD: {enabled: true}}"
POLICY = "clusterpolicy.nvidia.com/cluster-policy"


def choices(values: str | None = None, drivers: bool | None = None) -> InstallChoices:
    settings = None if values is None else read_settings(load_document(values), drivers)
    objects = settings.driver_objects if settings else ()
    return InstallChoices(settings=settings, drivers=objects, ask_for_drivers=drivers)


async def install(
    place: Any, values: str | None = None, drivers: bool | None = None, *, dry: bool = False
) -> list[AppliedObject]:
    found = manifests(install_manifests(), [], choices(values, drivers))
    return [each async for each in apply_all(place.client(), place.clock, found, dry=dry, drivers=drivers)]


async def apply_only_drivers(place: Any, values: str | None, drivers: bool | None) -> dict[str, str]:
    """As the chart's Job: the names of the objects and what happened to each."""
    objects = choices(values, drivers).drivers
    found = [each async for each in apply_drivers(place.client(), place.clock, objects, drivers=drivers)]
    return {each.name: each.result for each in found}


def about(done: Sequence[AppliedObject], part: str = "nvidia.com") -> dict[str, str]:
    return {each.name: each.result for each in done if part in each.name}


async def told(place: Any, *which: Any) -> list[str]:
    """The warnings, without those about ConfigMaps that do not exist."""
    found = [each async for each in warnings(place.client(), choices(*which))]
    return [each for each in found if not each.startswith("ConfigMap")]


async def policies(client: Client) -> list[dict[str, Any]]:
    return list((await client.list(CLUSTER_POLICIES)).items)


def theirs(name: str = "cluster-policy", **driver: Any) -> dict[str, Any]:
    """A ClusterPolicy as NVIDIA's chart leaves it in a cluster."""
    metadata = {"name": name, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    spec = {"devicePlugin": {"enabled": False}, "driver": {"version": "570", **driver}}
    return {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": metadata, "spec": spec}


def without_label(plural: str) -> dict[str, Any]:
    """A definition as somebody else's chart has it."""
    (found,) = (each for each in install_manifests() if each["metadata"]["name"] == f"{plural}.nvidia.com")
    assert found["metadata"].pop("labels")
    return found


def test_values_that_name_a_driver_make_the_policy_after_everything_that_follows_it(place: Any) -> None:
    async def scenario() -> None:
        done = await install(place, NAMED)
        assert (done[-1].name, done[-1].result) == (POLICY, "created")
        (made,) = await policies(place.client())
        assert made["spec"]["driver"]["version"] == "580.65.06"
        assert about(await install(place, NAMED))[POLICY] == "unchanged"
        assert await told(place, NAMED) == []

    asyncio.run(scenario())


def test_values_without_a_driver_make_none(place: Any) -> None:
    async def scenario() -> None:
        await install(place, "mig: {strategy: mixed}")
        assert await policies(place.client()) == []
        assert await told(place) == []

    asyncio.run(scenario())


def test_to_forget_an_option_takes_no_driver_away_and_is_told(place: Any) -> None:
    async def scenario() -> None:
        await install(place, NAMED)
        assert POLICY not in about(await install(place))
        assert len(await policies(place.client())) == 1
        (warning,) = await told(place)
        assert warning.startswith("cluster-policy of an earlier installation stays")
        assert "tessera install --no-drivers" in warning

    asyncio.run(scenario())


def test_no_drivers_takes_tesseras_objects_away(place: Any) -> None:
    async def scenario() -> None:
        await install(place, BY_OBJECTS)
        assert about(await install(place, BY_OBJECTS, False, dry=True), "default") == {
            "nvidiadriver.nvidia.com/default": "deleted"
        }
        assert len(await policies(place.client())) == 1
        done = about(await install(place, BY_OBJECTS, False))
        assert {done[POLICY], done["nvidiadriver.nvidia.com/default"]} == {"deleted"}
        assert await policies(place.client()) == []
        assert await told(place, None, False) == []

    asyncio.run(scenario())


def test_objects_in_whose_place_others_come_go(place: Any) -> None:
    async def scenario() -> None:
        await install(place, BY_OBJECTS)
        done = about(await install(place, NAMED))
        assert done[POLICY] == "configured"
        assert done["nvidiadriver.nvidia.com/default"] == "deleted"
        assert (await place.client().list(NVIDIA_DRIVERS)).items == []

    asyncio.run(scenario())


def test_a_policy_that_somebody_else_made_is_left_alone(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        helm = place.client("helm")
        before = await helm.create(CLUSTER_POLICIES, theirs())
        assert about(await install(place, NAMED))[POLICY] == "left"
        assert await policies(helm) == [before]
        assert POLICY not in about(await install(place, NAMED, False)), "nor is it deleted"
        assert await policies(helm) == [before]

    asyncio.run(scenario())


def test_a_user_may_take_it_over_even_where_an_operator_has_written_its_status(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        helm, operator = place.client("helm"), place.client("gpu-operator")
        await helm.create(CLUSTER_POLICIES, theirs())
        status = {"status": {"state": "ready"}}
        written = await operator.merge_patch(CLUSTER_POLICIES, "cluster-policy", status, subresource="status")
        assert find_other_manager(written) == "gpu-operator"
        assert about(await install(place, NAMED, True))[POLICY] == "configured"
        (after,) = await policies(helm)
        assert after["spec"]["driver"]["version"] == "580.65.06"
        assert find_other_manager(after) == ""

    asyncio.run(scenario())


@pytest.mark.parametrize("drivers", [None, True])
def test_definitions_that_somebody_else_made_are_left_alone_whatever_is_asked(place: Any, drivers: bool | None) -> None:
    async def scenario() -> None:
        helm = place.client("helm")
        for plural in ("clusterpolicies", "nvidiadrivers"):
            await helm.create(CRDS.as_dicts(), without_label(plural))
        done = about(await install(place, NAMED, drivers))
        for plural in ("clusterpolicies", "nvidiadrivers"):
            assert done[f"customresourcedefinition.apiextensions.k8s.io/{plural}.nvidia.com"] == "left"
        assert done[POLICY] == "created"

    asyncio.run(scenario())


def test_tesseras_own_definitions_are_kept_up_to_date(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        patch = {"spec": {"names": {"categories": ["x"]}}}
        await place.client("somebody").merge_patch(CRDS.as_dicts(), "nvidiadrivers.nvidia.com", patch)
        done = about(await install(place))
        assert done["customresourcedefinition.apiextensions.k8s.io/nvidiadrivers.nvidia.com"] != "left"

    asyncio.run(scenario())


def test_a_second_policy_beside_an_older_one_is_told(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        await place.client("somebody").create(CLUSTER_POLICIES, theirs("gpu-cluster-policy"))
        await install(place, NAMED, dry=True)
        before = await told(place, NAMED)
        await install(place, NAMED)
        (warning,) = await told(place, NAMED)
        assert before == [warning], "a trial says it as well"
        for fact in ("2 ClusterPolicies", "cluster-policy, gpu-cluster-policy", "Tessera follows the oldest"):
            assert fact in warning

    asyncio.run(scenario())


def test_a_trial_on_a_cluster_without_the_definitions_tells_what_it_would_make(place: Any) -> None:
    async def scenario() -> None:
        assert about(await install(place, NAMED, dry=True))[POLICY] == "created"
        with pytest.raises(NotFound):
            await place.client().list(CLUSTER_POLICIES)
        assert about(await install(place, None, False, dry=True)).get(POLICY) is None

    asyncio.run(scenario())


def test_only_the_driver_objects_are_applied_once_their_kinds_are_served(place: Any) -> None:
    async def scenario() -> None:
        with pytest.raises(NotFound):
            await apply_only_drivers(place, NAMED, None)
        await install(place)
        assert await apply_only_drivers(place, NAMED, None) == {POLICY: "created"}
        assert await apply_only_drivers(place, NAMED, None) == {POLICY: "unchanged"}
        assert await apply_only_drivers(place, BY_OBJECTS, None) == {
            POLICY: "configured",
            "nvidiadriver.nvidia.com/default": "created",
        }
        assert await apply_only_drivers(place, NAMED, None) == {
            POLICY: "configured",
            "nvidiadriver.nvidia.com/default": "deleted",
        }
        assert await apply_only_drivers(place, "mig: {strategy: mixed}", None) == {}
        assert await apply_only_drivers(place, None, False) == {POLICY: "deleted"}

    asyncio.run(scenario())


def test_the_driver_objects_of_another_operator_are_left(place: Any) -> None:
    async def scenario() -> None:
        await install(place)
        await place.client("helm").create(CLUSTER_POLICIES, theirs())
        assert await apply_only_drivers(place, NAMED, None) == {POLICY: "left"}
        assert await apply_only_drivers(place, None, False) == {}

    asyncio.run(scenario())
