"""A ResourceQuota in the lab counts GPU memory and profiles as the cards have them, for every kind of container."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.virtual_lab import InLab, VirtualLab, manifest

from tessera.controller.objects.resource_amounts import pod_amounts, pod_limits
from tessera.kube.errors import ApiError
from tessera.kube.resources import PODS, RESOURCE_QUOTAS
from tessera.signals.services import quota_room

MEMORY = "requests.instaslice.redhat.com/accelerator-memory-quota"
ONE, TWO, THREE = (f"nvidia.com/mig-{profile}" for profile in ("1g.5gb", "2g.10gb", "3g.20gb"))
COUNTED = {"1g.5gb": f"requests.{ONE}", "2g.10gb": f"requests.{TWO}", "3g.20gb": f"requests.{THREE}"}


def starting(name: str, limits: Mapping[str, int], *, stays: bool = False) -> dict[str, Any]:
    """An init container; a sidecar if it stays."""
    made = {"name": name, "image": "busybox", "resources": {"limits": limits}}
    command = ["sleep", "infinity"] if stays else ["sleep", "1"]
    return {**made, "command": command, **({"restartPolicy": "Always"} if stays else {})}


CASES: dict[str, tuple[list[dict[str, int]], dict[str, Any], dict[str, int], str]] = {
    "one container": ([{THREE: 1}], {}, {"3g.20gb": 1}, "20Gi"),
    "two containers": ([{ONE: 2}, {ONE: 1, TWO: 1}], {}, {"1g.5gb": 3, "2g.10gb": 1}, "25Gi"),
    "an init container that needs less": (
        [{ONE: 2}],
        {"initContainers": [starting("i", {ONE: 1})]},
        {"1g.5gb": 2},
        "10Gi",
    ),
    "an init container that needs more": (
        [{ONE: 1}],
        {"initContainers": [starting("i", {ONE: 3})]},
        {"1g.5gb": 3},
        "15Gi",
    ),
    "an init container of another profile": (
        [{ONE: 1}],
        {"initContainers": [starting("i", {THREE: 1})]},
        {"1g.5gb": 1, "3g.20gb": 1},
        "25Gi",
    ),
    "a sidecar": (
        [{ONE: 1}],
        {"initContainers": [starting("s", {ONE: 1}, stays=True)]},
        {"1g.5gb": 2},
        "10Gi",
    ),
    "a sidecar before an init container": (
        [{ONE: 1}],
        {"initContainers": [starting("s", {TWO: 1}, stays=True), starting("i", {ONE: 2})]},
        {"1g.5gb": 2, "2g.10gb": 1},
        "20Gi",
    ),
    "a sidecar that takes over from an init container": (
        [{ONE: 1}],
        {"initContainers": [starting("i", {ONE: 2}), starting("s", {ONE: 1}, stays=True)]},
        {"1g.5gb": 2},
        "10Gi",
    ),
    "resources of the pod": (
        [{ONE: 1}],
        {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "4", "memory": "1Gi"}}},
        {"1g.5gb": 1},
        "5Gi",
    ),
}


async def limit(lab: VirtualLab, hard: Mapping[str, str]) -> None:
    await lab.client.create(
        RESOURCE_QUOTAS.as_dicts(), {"metadata": {"name": "team"}, "spec": {"hard": hard}}, "default"
    )


async def used(lab: VirtualLab) -> dict[str, str]:
    quota = await lab.client.get(RESOURCE_QUOTAS, "team", "default")
    return dict(quota.status.used)


@pytest.mark.parametrize("case", CASES)
def test_the_quota_counts_the_slices_that_are_on_the_cards(in_lab: InLab, case: str) -> None:
    containers, spec, profiles, memory = CASES[case]

    async def scenario(lab: VirtualLab) -> None:
        await limit(lab, {MEMORY: "80Gi", **dict.fromkeys(COUNTED.values(), "8")})
        await lab.create("p", *containers, **spec)
        await lab.running("p")
        assert Counter(profile for _, profile, _ in lab.hardware()) == profiles
        expected = {name: str(profiles.get(profile, 0)) for profile, name in COUNTED.items()}
        assert await used(lab) == {MEMORY: memory, **expected}
        await lab.delete("p")
        await lab.empty()
        assert set((await used(lab)).values()) == {"0"}

    in_lab(scenario, nodes="2xA100-40GB")


def test_what_exceeds_the_memory_is_refused_with_the_amounts(in_lab: InLab) -> None:
    """The init container's slice and the other container's stay together until the pod ends, so both count."""

    async def scenario(lab: VirtualLab) -> None:
        await limit(lab, {MEMORY: "20Gi"})
        with pytest.raises(ApiError) as refused:
            await lab.create("p", {ONE: 1}, initContainers=[starting("i", {THREE: 1})])
        assert f"exceeded quota: team, requested: {MEMORY}=25Gi, used: {MEMORY}=0, limited: {MEMORY}=20Gi" in str(
            refused.value
        )
        await lab.create("p", {THREE: 1}, initContainers=[starting("i", {THREE: 1})])
        await lab.running("p")

    in_lab(scenario, nodes="1xA100-40GB")


@pytest.mark.parametrize(
    "spec",
    [
        {"hard": {f"requests.{ONE}": "3", "pods": "9"}},
        {"hard": {MEMORY: "12Gi"}},
        {"hard": {"limits.memory": "5Gi", "requests.cpu": "10"}},
        {"hard": {"cpu": "1500m"}},
        {"hard": {"count/pods": "2"}},
        {"hard": {"pods": "2"}, "scopes": ["NotBestEffort", "NotTerminating"]},
        {"hard": {"pods": "0"}, "scopes": ["BestEffort"]},
        {"hard": {"pods": "0"}, "scopes": ["Terminating"]},
    ],
    ids=str,
)
def test_the_room_of_a_service_is_the_number_of_pods_that_the_server_admits(
    in_lab: InLab, spec: Mapping[str, Any]
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        body = manifest("p", {ONE: 1, "cpu": "500m", "memory": "1Gi"})
        await lab.client.create(PODS.as_dicts(), body, "default")
        pod = await lab.client.get(PODS, "p", "default")
        await lab.client.create(RESOURCE_QUOTAS.as_dicts(), {"metadata": {"name": "team"}, "spec": spec}, "default")
        await lab.clock.sleep(10)
        quota = await lab.client.get(RESOURCE_QUOTAS.as_dicts(), "team", "default")
        room = quota_room([quota], pod_amounts(pod), pod_limits(pod))
        refused: list[str] = []
        for number in range(6):
            try:
                await lab.client.create(PODS.as_dicts(), {**body, "metadata": {"name": f"p-{number}"}}, "default")
            except ApiError as error:
                refused.append(str(error))
        assert all("exceeded quota: team" in each for each in refused)
        assert 6 - len(refused) == (6 if room is None else room)

    in_lab(scenario, nodes="2xA100-40GB")
