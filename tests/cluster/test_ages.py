"""Nobody saves up an age: the pod that has competed for room for longer starts first, also with a new controller.

No pod waits for so long here that it gets a reservation, which would go first anyway.
"""

from typing import Any

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.names import GATE
from tessera.kube.resources import CONFIGMAPS, JOBS, PODS

WHOLE = {"nvidia.com/mig-7g.40gb": 1}
OWN = "tenant.example/mine"


async def holder_runs(lab: VirtualLab) -> None:
    await lab.create("holder", WHOLE)
    await lab.running("holder")


async def victim_first(lab: VirtualLab, other: str) -> None:
    """The holder ends, and the pod that has waited for longer starts."""
    await lab.clock.sleep(2)
    assert not lab.events_of("victim", "SliceReserved")
    await lab.delete("holder")
    await lab.running("victim")
    assert lab.phase(other) == "Pending"


@pytest.mark.parametrize("wait", [None, 1, 10], ids=["", "a new controller at once", "a new controller later"])
def test_time_behind_a_gate_of_its_own_gives_a_pod_no_age(in_lab: InLab, wait: float | None) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await holder_runs(lab)
        await lab.create("early", WHOLE, schedulingGates=[{"name": OWN}])
        await lab.clock.sleep(300)
        await lab.create("victim", WHOLE)
        await lab.clock.sleep(20)
        await lab.client.merge_patch(PODS, "early", {"spec": {"schedulingGates": [{"name": GATE}]}}, "default")
        if wait is not None:
            await lab.clock.sleep(wait)
            await lab.kill()
            await lab.clock.sleep(20)
        await victim_first(lab, "early")

    in_lab(scenario, "1xA100-40GB")


def pod_of(owner: dict[str, Any], name: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "ownerReferences": [{**owner, "controller": True}]},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": WHOLE}}], **spec},
    }


def test_an_owner_that_makes_no_pods_passes_no_age_on(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await holder_runs(lab)
        made = await lab.client.create(CONFIGMAPS.as_dicts(), {"metadata": {"name": "owner"}}, "default")
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": made["metadata"]["uid"]}
        await lab.client.create(PODS.as_dicts(), pod_of(owner, "never", nodeSelector={"no": "such"}), "default")
        await lab.clock.sleep(300)
        await lab.create("victim", WHOLE)
        await lab.clock.sleep(10)
        await lab.delete("never")
        await lab.client.create(PODS.as_dicts(), pod_of(owner, "fresh"), "default")
        await victim_first(lab, "fresh")

    in_lab(scenario, "1xA100-40GB")


def test_a_pod_that_its_job_makes_anew_goes_on_with_the_age(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await holder_runs(lab)
        container = {"name": "c", "image": "i", "resources": {"limits": WHOLE}}
        spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
        await lab.client.create(JOBS.as_dicts(), {"metadata": {"name": "train"}, "spec": spec}, "default")

        def pods() -> list[str]:
            found = [pod for pod in lab.pods.cache.values() if "job-name" in pod.metadata.labels]
            return [each.metadata.name for each in found]

        await lab.until(pods, "the Job has a pod")
        await lab.clock.sleep(20)
        await lab.create("younger", WHOLE)
        await lab.clock.sleep(10)
        (first,) = pods()
        await lab.delete(first)
        await lab.until(lambda: pods() and pods() != [first], "the Job has another pod")
        await lab.clock.sleep(2)
        await lab.delete("holder")
        await lab.running(*pods())
        assert lab.phase("younger") == "Pending"

    in_lab(scenario, "1xA100-40GB")
