"""First lists that do not come: a right is named as missing only where the API server says that it is."""

import asyncio
import logging
import random
from functools import partial

import pytest
from tests.webhook.conftest import ADMIN, Lab, in_lab

from tessera.claims.satellite import ClaimInformers
from tessera.controller.informers import (
    SYNC_TIMEOUT,
    ConstraintInformers,
    PodGroupInformer,
    QueueInformer,
)
from tessera.controller.slicing.slicer import Slicer
from tessera.kube.client import Client
from tessera.kube.errors import ServiceUnavailable, Status
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.requests import Request, Response
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport

Kind = type[ConstraintInformers] | type[QueueInformer] | type[ClaimInformers] | type[PodGroupInformer]
DRIVER = "gpu.tessera.dev"
NOBODY = UserInfo(name="nobody", groups=("system:authenticated",))


class Starting(InProcessTransport):
    """Requests to an API server that answers 503 for some seconds."""

    def __init__(self, lab: Lab, user: UserInfo, seconds: float) -> None:
        super().__init__(lab.server, user)
        self._clock, self._until = lab.clock, lab.clock.monotonic() + seconds

    async def request(self, request: Request) -> Response:
        if self._clock.monotonic() < self._until:
            raise ServiceUnavailable(Status(code=503, reason="ServiceUnavailable", message="starting"))
        return await super().request(request)


def warnings_of(kind: Kind, user: UserInfo, seconds: float, caplog: pytest.LogCaptureFixture) -> str:
    """What is logged as a warning at a server that starts for some seconds."""

    async def story(lab: Lab) -> None:
        client = Client(Starting(lab, user, seconds), field_manager="controller", clock=lab.clock)
        runtime = KubeRuntime(client=client, clock=lab.clock, rng=random.Random(0))
        informers = partial(kind, runtime, Slicer(), lambda: None)(*([DRIVER] if kind is ClaimInformers else []))
        tasks = [asyncio.create_task(informers.run())]
        if not isinstance(informers, PodGroupInformer):
            tasks.append(asyncio.create_task(informers.wait_synced()))
        await lab.clock.sleep(4 * SYNC_TIMEOUT)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    with caplog.at_level(logging.WARNING):
        in_lab(story)
    return "\n".join(each.getMessage() for each in caplog.records)


@pytest.mark.parametrize("kind", [ConstraintInformers, QueueInformer, ClaimInformers])
def test_a_server_that_starts_lacks_no_right(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    found = warnings_of(kind, ADMIN, 3 * SYNC_TIMEOUT, caplog)
    assert "are not listed after" in found
    assert "apply" not in found


def test_a_server_without_pod_groups_lacks_nothing_though_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(PodGroupInformer, ADMIN, 5, caplog) == ""


def test_a_right_that_is_missing_is_named(caplog: pytest.LogCaptureFixture) -> None:
    found = warnings_of(ConstraintInformers, NOBODY, 0, caplog)
    assert "placed without regard to them; apply the rights of this version (deploy/rbac.yaml)" in found
