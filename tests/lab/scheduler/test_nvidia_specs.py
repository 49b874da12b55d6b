"""NVIDIA's claim specs on a whole simulated control plane, placed by the scheduler's own allocator (scheduler mode).

``tests/dra/test_nvidia_specs.py`` has the table, and says how Tessera places them. Here the API server takes the
objects, the scheduler allocates the devices that an agent publishes without a taint, and binds the pods. Kubelet and
agent are tested in ``tests/agent/slices/test_claim_driver.py``.
"""

from typing import Any

import msgspec
import pytest
from tests.dra.test_nvidia_specs import CHANNELS, RUNS, SERVED, SPECS, Spec
from tests.support.device_claims import claiming_pod, profile_class

from tessera.clock import LoopClock
from tessera.dra.driver_objects import device_classes, plan_slices
from tessera.dra.node_devices import NVIDIA_DRIVER
from tessera.kube.client import Client
from tessera.kube.resources import NODES, PODS
from tessera_lab.cluster.cluster import SimulatedCluster
from tessera_lab.scheduler.claim_binding import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tessera_lab.simulation.virtual_time import run_virtual

Obj = dict[str, Any]

#: What the pods of a file that does not run are told.
NO_DEVICES = "cannot allocate all claims"
#: Limits that the scheduler turns into claims.
LIMITS = {"extended-resources/gpu-full": "nvidia.com/gpu", "extended-resources/mig-1g-12gb": "nvidia.com/mig-1g.12gb"}


def message(spec: Spec) -> str:
    """What kube-scheduler says to a pod of the file; empty if it is bound: it reads no configuration of a driver."""
    if spec.answer == RUNS or spec.answer.startswith("spec.devices.config"):
        return ""
    return "device class imex.nvidia.com does not exist" if "imex.nvidia.com" in spec.answer else NO_DEVICES


async def prepare(client: Client, spec: Spec) -> None:
    """The node, its devices, and the classes."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": None}
    await client.create(NODES.as_dicts(), {"metadata": {"name": "n1"}})
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    await client.merge_patch(NODES, "n1", {"status": status}, subresource="status")
    for each in plan_slices(spec.on, ()).create:
        await client.create(RESOURCE_SLICES, msgspec.json.decode(msgspec.json.encode(each)))
    classes = [msgspec.to_builtins(CHANNELS), *device_classes(NVIDIA_DRIVER), profile_class(NVIDIA_DRIVER, "1g.12gb")]
    for made in classes:
        await client.create(DEVICE_CLASSES, {"metadata": made["metadata"], "spec": made["spec"]})


async def create(client: Client, spec: Spec, pod: str) -> None:
    """A pod of the file with its claims."""
    entries = []
    for index, devices in enumerate(spec.claims):
        name = f"{pod}-{index}"
        await client.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": {"devices": devices}}, "default")
        entries.append({"name": f"c{index}", "resourceClaimName": name})
    await client.create(PODS.as_dicts(), claiming_pod(pod, *entries), "default")


async def places(client: Client) -> list[tuple[str, str]]:
    """Pool and device of each result of all allocations."""
    claims = (await client.list(RESOURCE_CLAIMS, "default")).items
    allocations = [claim["status"]["allocation"] for claim in claims if claim["status"].get("allocation")]
    assert all(each["allocationTimestamp"] for each in allocations)
    return [(each["pool"], each["device"]) for found in allocations for each in found["devices"]["results"]]


def play(spec: Spec) -> tuple[list[Obj], list[tuple[str, str]]]:
    """The pods of a file once the scheduler has judged them, and the devices that were given."""
    found: tuple[list[Obj], list[tuple[str, str]]] = [], []

    async def main() -> None:
        cluster = SimulatedCluster([], clock=LoopClock(1_800_000_000))
        client = cluster.client("test")
        async with cluster.running():
            await prepare(client, spec)
            for number in range(spec.pods):
                if spec.files in LIMITS:
                    pod = claiming_pod(f"p{number}")
                    pod["spec"]["containers"][0]["resources"] = {"limits": {LIMITS[spec.files]: "1"}}
                    await client.create(PODS.as_dicts(), pod, "default")
                else:
                    await create(client, spec, f"p{number}")
            await cluster.clock.sleep(20)
            found[0].extend((await client.list(PODS.as_dicts(), "default")).items)
            found[1].extend(await places(client))

    run_virtual(main())
    return found


@pytest.mark.parametrize(
    "spec", [each for each in SPECS if each.version in SERVED], ids=lambda each: each.files.split()[0]
)
def test_the_scheduler_places_a_spec_of_nvidia_or_says_why_not(spec: Spec) -> None:
    pods, given = play(spec)
    assert len(pods) == spec.pods
    expected = message(spec)
    for pod in pods:
        (condition,) = [each for each in pod["status"]["conditions"] if each["type"] == "PodScheduled"]
        assert (condition["status"], pod["spec"].get("nodeName")) == (
            ("True", "n1") if not expected else ("False", None)
        )
        assert expected in condition.get("message", "")
    if expected:
        assert given == []
    else:
        assert len(given) >= spec.pods
        assert spec.on[-1].name.endswith("/shares") or len(set(given)) == len(given)
