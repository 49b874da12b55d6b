"""Namespaces of add-ons that exist when Tessera comes are exempt from the policy for pods; later ones are not."""

import random
from typing import Any

import pytest
from tests.support.api_clients import in_process_client
from tests.support.api_user import ApiUser

from tessera.clock import LoopClock
from tessera.controller.defaults import RECORD, RECORD_KEY, exempt_add_ons
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, NAMESPACES
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.simulation.virtual_time import run_virtual

LABEL = "tessera.dev/device-access"
SYSTEM = "tessera-system"


class Scene:
    """A cluster with some namespaces."""

    def __init__(self) -> None:
        self.clock = LoopClock(1_700_000_000.0)
        self.server = ApiServer(self.clock)
        self.user = ApiUser(self.server)
        self.client = in_process_client(self.server, self.clock, "controller", "system:masters", "system:authenticated")

    async def make(self, *names: str, **labels: str) -> None:
        for name in names:
            meta = {"name": name, "labels": {key.replace("_", "/"): value for key, value in labels.items()}}
            await self.user("POST", "/api/v1/namespaces", {"metadata": meta})

    async def lead(self) -> None:
        runtime = KubeRuntime(client=self.client, clock=self.clock, rng=random.Random(1), may_act=lambda: True)
        await exempt_add_ons(runtime, namespace=SYSTEM)

    async def labels(self) -> dict[str, str]:
        found = (await self.client.list(NAMESPACES)).items
        return {each.metadata.name: each.metadata.labels[LABEL] for each in found if LABEL in each.metadata.labels}


def played(play: Any) -> None:
    async def run() -> None:
        await play(Scene())

    run_virtual(run())


def test_what_exists_is_labelled_once_and_what_comes_later_is_not() -> None:
    async def play(scene: Scene) -> None:
        await scene.make(SYSTEM, "rook-ceph", "team", "calico-system")
        await scene.lead()
        assert await scene.labels() == {"rook-ceph": "allowed", "calico-system": "allowed"}
        record = await scene.client.get(CONFIGMAPS, RECORD, SYSTEM)
        assert record.data == {RECORD_KEY: "calico-system\nrook-ceph"}
        await scene.make("openebs")
        await scene.user.merge("/api/v1/namespaces/rook-ceph", {"metadata": {"labels": {LABEL: None}}})
        await scene.lead()
        assert await scene.labels() == {"calico-system": "allowed"}

    played(play)


def test_a_value_that_an_administrator_chose_stays() -> None:
    async def play(scene: Scene) -> None:
        await scene.make(SYSTEM)
        await scene.user("POST", "/api/v1/namespaces", {"metadata": {"name": "openebs", "labels": {LABEL: "refused"}}})
        await scene.lead()
        assert await scene.labels() == {"openebs": "refused"}

    played(play)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_controller_that_ends_at_any_request_leaves_the_rest_to_the_next(at: int) -> None:
    async def play(scene: Scene) -> None:
        await scene.make(SYSTEM, "cilium", "openebs")
        requests = 0
        original = scene.client.request

        async def request(*args: Any, **named: Any) -> Any:
            nonlocal requests
            requests += 1
            if requests > at:
                raise SystemError("killed")
            return await original(*args, **named)

        scene.client.request = request  # type: ignore[method-assign]
        with pytest.raises(SystemError):
            await scene.lead()
        scene.client.request = original  # type: ignore[method-assign]
        await scene.lead()
        assert await scene.labels() == {"cilium": "allowed", "openebs": "allowed"}

    played(play)
