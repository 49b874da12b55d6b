"""A waiting pod inherits only if the owner exists that it names: with this kind, name and UID, in its namespace."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest
from tests.webhook.conftest import Lab, in_lab

from tessera.api.names import GATE, PodUid
from tessera.clock import rfc3339
from tessera.controller.informers import PodOwners
from tessera.controller.objects.pod_info import MAKERS, Owner, PodInfo, Workload
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import OwnerLookedUp, PodDeleted, PodObserved, TimePassed
from tessera.handover.satellite import WorkloadReader
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Status
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import JOBS, NAMESPACES, REPLICASETS, STATEFULSETS

NOW = 1_700_000_000.0
KINDS = {each.kind: each for each in (JOBS, REPLICASETS, STATEFULSETS)}


def slicer_with_heirs(owners: Mapping[str, str]) -> Slicer:
    """A slicer in which a second pod of each owner has come, 600 s after the first; ``owners``: makers by UID."""
    slicer = Slicer()
    slicer.handle(TimePassed(NOW, NOW))
    for at, number in ((NOW, 1), (NOW + 600, 2)):
        slicer.handle(TimePassed(at, at))
        for uid, maker in owners.items():
            facts: dict[str, Any] = {"gates": (GATE,), "profiles": ("7g.40gb",), "owner": uid, "maker": maker}
            name = f"{uid}-{number}"
            slicer.handle(PodObserved(PodInfo(PodUid(name), "default", name, created=rfc3339(at), **facts)))
        for uid in [PodUid(f"{uid}-1") for uid in owners] if number == 1 else ():
            pod = slicer.state.cluster.pods[uid]
            slicer.state.ages.forget(uid, pod, NOW + 600, competes=True)  # it has waited for room
            slicer.handle(PodDeleted(uid))
    return slicer


def heirs(slicer: Slicer) -> set[str]:
    """The UIDs of the owners whose second pod is as old as the first."""
    return {uid.removesuffix("-2") for uid, pod in slicer.state.cluster.pods.items() if pod.created < rfc3339(NOW + 60)}


async def ask(client: Client, lab: Lab, slicer: Slicer, seconds: float = 1.0) -> None:
    runtime = KubeRuntime(client=client, clock=lab.clock, rng=random.Random(0))
    owners = PodOwners(runtime, slicer, lambda: None)
    owners.look()
    task = asyncio.create_task(owners.run())
    await lab.clock.sleep(seconds)
    task.cancel()
    await asyncio.wait({task})


def test_every_kind_that_makes_pods_is_looked_up_by_kind_name_namespace_and_uid() -> None:
    assert {kind for version, kind in MAKERS if "kruise" not in version} == KINDS.keys()

    async def story(lab: Lab) -> None:
        await lab.client.create(NAMESPACES, {"metadata": {"name": "other"}})
        owners: dict[str, str] = {"made-up": "Job/train", "nobody": "Job/nobody"}
        real = set()
        for kind, resource in KINDS.items():
            spec = {"selector": {"matchLabels": {"a": "b"}}, "serviceName": "s"} if kind != "Job" else {}
            template: dict[str, Any] = {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            }
            if kind == "Job":
                template["spec"]["restartPolicy"] = "Never"
            body = {"metadata": {"name": "train"}, "spec": {**spec, "template": template}}
            made = await lab.client.create(resource.as_dicts(), body, "default")
            owners[made["metadata"]["uid"]] = f"{kind}/train"
            real.add(made["metadata"]["uid"])
            elsewhere = await lab.client.create(resource.as_dicts(), body, "other")
            owners[elsewhere["metadata"]["uid"]] = f"{kind}/train"
        slicer = slicer_with_heirs(owners)
        assert len(slicer.state.ages.unknown_owners) == len(owners)
        await ask(lab.client, lab, slicer)
        assert heirs(slicer) == real
        assert not slicer.state.ages.unknown_owners

    in_lab(story)


class RefusingClient(Client):
    """Answers with errors, one after the other, and then as the server does."""

    def __init__(self, inner: Client, *errors: Exception) -> None:
        self._inner = inner
        self._errors = list(errors)

    async def get(self, resource: Any, name: str, namespace: str | None = None, **options: Any) -> Any:
        if self._errors:
            raise self._errors.pop(0)
        return await self._inner.get(resource, name, namespace, **options)


@pytest.mark.parametrize(
    "error", [*(ApiError(Status(code=code)) for code in (401, 408, 429, 500, 503)), ConnectionError("broken")]
)
def test_an_owner_is_asked_about_again_where_the_server_said_nothing_about_it(error: Exception) -> None:
    async def story(lab: Lab) -> None:
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
        body = {"metadata": {"name": "train"}, "spec": {"template": template}}
        made = await lab.client.create(JOBS.as_dicts(), body, "default")
        slicer = slicer_with_heirs({made["metadata"]["uid"]: "Job/train"})
        client = RefusingClient(lab.client, error)
        await ask(client, lab, slicer)
        assert not heirs(slicer)
        await ask(client, lab, slicer, 10.0)
        assert heirs(slicer) == {made["metadata"]["uid"]}

    in_lab(story)


@pytest.mark.parametrize("code", [403, 404, 410])
def test_without_the_right_to_ask_no_pod_inherits(code: int) -> None:
    async def story(lab: Lab) -> None:
        slicer = slicer_with_heirs({"u": "Job/train"})
        await ask(RefusingClient(lab.client, ApiError(Status(code=code))), lab, slicer)
        assert not heirs(slicer)
        assert not slicer.state.ages.unknown_owners

    in_lab(story)


def test_an_owner_that_is_being_deleted_wants_no_pods() -> None:
    """As after `kubectl delete --cascade=foreground`, which deletes the pods first."""

    async def story(lab: Lab) -> None:
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        body = {
            "metadata": {"name": "svc", "finalizers": ["example.com/pods"]},
            "spec": {"replicas": 3, "serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": template},
        }
        made = await lab.client.create(STATEFULSETS.as_dicts(), body, "default")
        owner = Owner("default", "StatefulSet/svc", made["metadata"]["uid"])
        runtime = KubeRuntime(client=lab.client, clock=lab.clock, rng=random.Random(0))
        owners = PodOwners(runtime, Slicer(), lambda: None, [WorkloadReader(lab.client).read])
        assert await owners._look_up(owner) == OwnerLookedUp(owner, Workload(owner.uid, 3))
        await lab.client.delete(STATEFULSETS, "svc", "default")
        assert await owners._look_up(owner) == OwnerLookedUp(owner, Workload(owner.uid, 0))

    in_lab(story)
