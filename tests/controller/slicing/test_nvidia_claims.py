"""Claim specs of NVIDIA's driver, placed by the controller: one node's cards are cut on demand, another's are whole.

Each of them runs, is another driver's, or is refused with the field or request. Specs of shares have a card in shares.
"""

import msgspec
import pytest
from tests.dra.test_nvidia_specs import CHANNELS, ELSEWHERE, RUNS, SERVED, SHARED, SPECS, Spec
from tests.support.claim_cluster import ClaimCluster
from tests.support.device_claims import profile_class

from tessera.dra.driver_objects import device_classes
from tessera.dra.node_devices import NVIDIA_DRIVER

NOT_PUBLISHED = "no node publishes a device for it"
#: What is said where the table of :mod:`tests.dra.test_nvidia_specs` has other nodes or another caller.
OTHERWISE = {
    "extended-resources/mig-1g-12gb": NOT_PUBLISHED,
    "error-handling": NOT_PUBLISHED,
    "gpu-cel-nomatch": NOT_PUBLISHED,
}


def play(spec: Spec) -> tuple[ClaimCluster, list[str]]:
    """Two nodes of eight A100s after the pods of a file were made; what each pod is told."""
    cluster = ClaimCluster(driver=NVIDIA_DRIVER)
    cluster.classes = [
        msgspec.to_builtins(CHANNELS),
        *device_classes(NVIDIA_DRIVER),
        profile_class(NVIDIA_DRIVER, "1g.12gb"),
    ]
    cluster.tell_claims()
    if spec.on is SHARED:
        cluster.claim_node("n1", count=1, shares=4)
    else:
        cluster.claim_node("n1", count=8)
        cluster.claim_node("n2", count=8, whole=True)
    pods = []
    for number in range(spec.pods):
        keys = []
        for index, devices in enumerate(spec.claims):
            more = {key: value for key, value in devices.items() if key != "requests"}
            keys.append(cluster.claim(f"p{number}-{index}", *devices["requests"], **more))
        pods.append(cluster.user(f"p{number}", *keys))
    cluster.settle()
    told = [cluster.slicer.state.cluster.pods[pod.uid].fault for pod in pods]
    return cluster, [
        "" if cluster.pods[pod.uid].node else fault or ELSEWHERE for pod, fault in zip(pods, told, strict=True)
    ]


def answer(spec: Spec) -> str:
    """What the pods of a file are told; empty if they run."""
    found = OTHERWISE.get(spec.files.split()[0], spec.answer)
    return "" if found == RUNS else found


@pytest.mark.parametrize(
    "spec", [each for each in SPECS if each.version in SERVED], ids=lambda each: each.files.split()[0]
)
def test_a_spec_of_nvidia_runs_or_says_why_not(spec: Spec) -> None:
    cluster, told = play(spec)
    expected = answer(spec)
    assert len(told) == spec.pods
    assert all(expected in each for each in told)
    assert bool(expected) or told == [""] * spec.pods
    given = [device for key in cluster.claims for device in cluster.devices(key)]
    assert spec.on is SHARED or len(given) == len(set(given))
    assert bool(given) is not bool(expected)
