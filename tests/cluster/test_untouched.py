"""Nothing but the pods that ask for slices is touched."""

from collections.abc import Awaitable

import msgspec
import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.resources import PODS
from tessera_lab.apiserver.admission.webhooks.callers import Reviewer

PLAIN = [
    {"cpu": "1", "memory": "1Gi"},
    {},
    {"nvidia.com/gpu": "1"},
    {"example.com/mig-1g.5gb": "1"},
]


@pytest.mark.parametrize("limits", PLAIN)
def test_a_pod_without_slices_is_byte_for_byte_what_it_is_without_tessera(
    in_lab: InLab, limits: dict[str, str]
) -> None:
    """Compared as stored: the same server, once with admission joined and once without."""

    async def scenario(lab: VirtualLab) -> None:
        container = {"name": "c", "image": "i", "env": [{"name": "A", "value": "b"}], "resources": {"limits": limits}}
        pod = {"metadata": {"name": "plain", "labels": {"a": "b"}}, "spec": {"containers": [container]}}
        with_admission = await lab.client.create(PODS.as_dicts(), pod, "default")
        await lab.delete("plain")
        lab.cluster.server.parts.webhooks = None
        without = await lab.client.create(PODS.as_dicts(), pod, "default")
        for each in (with_admission, without):
            for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
                each["metadata"].pop(field, None)
        assert msgspec.json.encode(with_admission) == msgspec.json.encode(without)

    in_lab(scenario, nodes="1xA100-40GB")


def test_the_webhook_is_not_asked_about_a_pod_without_gpus(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        asked: list[bytes] = []
        reviewers = lab.cluster.reviewers

        def overhear(review: Reviewer) -> Reviewer:
            def overheard(body: bytes) -> bytes | Awaitable[bytes]:
                asked.append(body)
                return review(body)

            return overheard

        for service, review in tuple(reviewers.items()):
            reviewers[service] = overhear(review)
        await lab.create("plain", {"cpu": 1})
        assert asked == []
        await lab.create("sliced", {"nvidia.com/mig-1g.5gb": 1})
        assert len(asked) == 1

    in_lab(scenario, nodes="1xA100-40GB")


def test_only_gate_and_quota_are_added_to_a_pod_that_asks(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("blocker", {"nvidia.com/mig-7g.40gb": 1})
        await lab.running("blocker")
        container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/mig-3g.20gb": "1"}}}
        pod = {"metadata": {"name": "sliced"}, "spec": {"containers": [container]}}
        sliced = await lab.client.create(PODS.as_dicts(), pod, "default")
        lab.cluster.server.parts.webhooks = None
        await lab.delete("sliced")
        plain = await lab.client.create(PODS.as_dicts(), pod, "default")
        quota = {"instaslice.redhat.com/accelerator-memory-quota": "20Gi"}
        assert sliced["spec"].pop("schedulingGates") == [{"name": "instaslice.redhat.com/accelerator"}]
        resources = sliced["spec"]["containers"][0]["resources"]
        for kind in ("limits", "requests"):
            assert resources[kind] == {"nvidia.com/mig-3g.20gb": "1", **quota}
            for name in quota:
                del resources[kind][name]
        assert sliced["spec"] == plain["spec"]

    in_lab(scenario, nodes="1xA100-40GB")
