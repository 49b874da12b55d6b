"""The satellites of a whole controller: one of them, and the metrics of all beside the core's."""

import asyncio
import random
from typing import TypeVar

from prometheus_client import CollectorRegistry

from tessera.cli.controller import parse_options
from tessera.clock import SystemClock
from tessera.controller.base import ControllerMetrics
from tessera.controller.satellite import ControllerOptions, Process
from tessera.kube.client import Client
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

S = TypeVar("S")


def satellite(options: ControllerOptions, kind: type[S]) -> S:
    """The satellite of this kind."""
    (found,) = (each for each in options.satellites if isinstance(each, kind))
    return found


def new_process(registry: CollectorRegistry | None = None) -> Process:
    """What the controller's process lends to a satellite, with an empty API server."""
    clock = SystemClock()
    user = UserInfo(name="controller", groups=("system:masters",))
    client = Client(InProcessTransport(ApiServer(clock), user), field_manager="tessera-controller", clock=clock)
    return Process(client=client, clock=clock, rng=random.Random(1), registry=registry or CollectorRegistry())


def whole_registry() -> CollectorRegistry:
    """The registry of a controller with all satellites."""
    registry = ControllerMetrics().registry

    async def open_all() -> None:
        process = new_process(registry)
        async with process.at_end:
            for each in parse_options((), {"POD_NAME": "p"}).satellites:
                each.open(process)

    asyncio.run(open_all())
    return registry
