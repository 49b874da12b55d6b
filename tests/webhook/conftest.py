"""An API server on virtual time, with the configuration of deploy/ and replicas of the webhook."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.requests import Transport
from tessera.kube.resources import CRDS, MUTATING_WEBHOOKS, NAMESPACES
from tessera.webhook.base import WebhookOptions
from tessera.webhook.main import WebhookReplica
from tessera_lab.apiserver.admission.webhooks.admission_webhooks import AdmissionWebhooks
from tessera_lab.apiserver.admission.webhooks.callers import InProcessCaller
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.simulation.virtual_time import run_virtual

DEPLOY = Path(__file__).parents[2] / "deploy"
CRD = yaml.load((DEPLOY / "crds" / "instaslices.yaml").read_text(), yaml.CSafeLoader)
CONFIGURATION = yaml.load((DEPLOY / "admission.yaml").read_text(), yaml.CSafeLoader)
ADMIN = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))
NAMESPACE, NAME, SECRET = "tessera-system", "tessera-webhook", "tessera-webhook-cert"


class Lab:
    """An API server that knows the webhook's configuration."""

    def __init__(self) -> None:
        self.clock = LoopClock(1_700_000_000.0)
        self.server = ApiServer(self.clock)
        self.client = Client(InProcessTransport(self.server, ADMIN), field_manager="admin", clock=self.clock)

    async def install(self) -> None:
        await self.client.create(CRDS, CRD)
        await self.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await self.client.create(NAMESPACES, {"metadata": {"name": "instaslice-system"}})

    async def configure(self) -> None:
        """Installs the configuration of deploy/."""
        await self.client.create(MUTATING_WEBHOOKS, CONFIGURATION)

    def answer_by(self, review: Callable[[bytes], bytes]) -> None:
        """Sends reviews to this function, as the service would carry them."""
        caller = InProcessCaller({(NAMESPACE, NAME): review})
        core = self.server.core
        core.parts.webhooks = AdmissionWebhooks(core.store, core.registry, caller, core.new_uid)

    @asynccontextmanager
    async def replica(
        self, seed: int = 0, way: Callable[[Transport], Transport] = lambda inner: inner, **options: Any
    ) -> AsyncIterator[WebhookReplica]:
        """Runs a replica, whose way to the API server may be wrapped."""
        ready = asyncio.Event()
        chosen = WebhookOptions(**{"port": None, "health_port": None, "on_ready": ready.set, **options})
        transport = way(InProcessTransport(self.server, ADMIN))
        client = Client(transport, field_manager="tessera-webhook", clock=self.clock)
        webhook = WebhookReplica(chosen, client, self.clock, rng=random.Random(seed))
        task = asyncio.create_task(webhook.run())
        try:
            yield webhook
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def bundle(self) -> bytes:
        found = await self.client.get(MUTATING_WEBHOOKS, NAME)
        bundles = {one.client_config.ca_bundle for one in found.webhooks}
        assert len(bundles) == 1
        assert {one.client_config.service["name"] for one in found.webhooks if one.client_config.service} == {NAME}
        return bundles.pop()


def in_lab(story: Callable[[Lab], Awaitable[None]]) -> None:
    async def main() -> None:
        lab = Lab()
        await lab.install()
        await story(lab)

    run_virtual(main())


@pytest.fixture
async def lab(virtual_time: None) -> Lab:
    """A lab on virtual time with the webhook's objects."""
    made = Lab()
    await made.install()
    return made
