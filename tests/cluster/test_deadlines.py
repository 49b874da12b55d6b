"""A pod that runs past a reservation leaves in time, whatever grace period its deletion or eviction has."""

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.errors import Forbidden
from tessera.kube.resources import PODS

HALF = {"nvidia.com/mig-3g.20gb": 1}
WHOLE = {"nvidia.com/mig-7g.40gb": 1}
#: More than any deadline here: a day.
DAY = 86_400


async def cheat_runs(lab: VirtualLab) -> None:
    """A pod that ignores SIGTERM and has a deadline of 60 s runs on slots that are reserved for ``victim``."""
    await lab.create("old", HALF, command="sleep 400", activeDeadlineSeconds=500)
    await lab.running("old")
    await lab.create("victim", WHOLE)
    await lab.until(lambda: lab.events_of("victim", "SliceReserved"), "slots are reserved")
    body = {
        "metadata": {"name": "cheat", "annotations": {"lab.tessera.dev/ignores-sigterm": ""}},
        "spec": {
            "restartPolicy": "Always",
            "activeDeadlineSeconds": 60,
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {"name": "c", "image": "busybox", "command": ["sleep", "inf"], "resources": {"limits": HALF}}
            ],
        },
    }
    await lab.client.create(PODS.as_dicts(), body, "default")
    await lab.running("cheat")


def test_a_deletion_with_a_long_grace_is_refused(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await cheat_runs(lab)
        with pytest.raises(Forbidden, match="terminationGracePeriodSeconds"):
            await lab.client.delete(PODS, "cheat", "default", grace_seconds=DAY)
        await lab.client.delete(PODS, "cheat", "default", grace_seconds=1)
        await lab.until(lambda: lab.pod("cheat") is None, "it is gone", 10)

    in_lab(scenario, "1xA100-40GB")


@pytest.mark.parametrize("killed", [False, True], ids=["", "a new controller"])
def test_an_eviction_with_a_long_grace_ends_at_the_deadline(in_lab: InLab, killed: bool) -> None:
    """The policy does not see the pod of an eviction, so the controller ends it."""

    async def scenario(lab: VirtualLab) -> None:
        await cheat_runs(lab)
        began = lab.clock.now()
        await lab.client.evict("cheat", "default", grace_seconds=DAY)
        await lab.until(lambda: lab.existing_pod("cheat").metadata.deletion_timestamp, "it is being deleted")
        if killed:
            await lab.kill()
        await lab.until(lambda: lab.pod("cheat") is None, "it is gone")
        assert lab.clock.now() - began < (120 if killed else 75)
        assert lab.events_of("cheat", "SliceDeadline")
        await lab.until(lambda: lab.phase("old") == "Succeeded", "the other pod ends")
        await lab.running("victim")

    in_lab(scenario, "1xA100-40GB")
