"""Simulated nodes on a cluster that is not the lab's: kubelets and production agents against any API server.

Each runs under the identity that a real one has, by impersonation; so the kubeconfig must be an administrator's. Cards,
images and containers are simulated.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tessera.agent.base.settings import AgentOptions
from tessera.agent.lifecycle import run_lifecycle
from tessera.agent.simulated import SimulatedDriver, SimulatedPrograms
from tessera.api.names import DEVICE_API_DRA, DEVICE_API_LABEL
from tessera.cli.agent import node_satellites
from tessera.cli.base.kubeconfig import load_config
from tessera.clock import Clock, SystemClock
from tessera.kube.client import Client
from tessera.kube.http import HttpTransport
from tessera.kube.requests import Request, Response, Transport
from tessera_lab.apiserver.authz.identity import service_account_user
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.cluster.cluster import ADMIN
from tessera_lab.cluster.node_maker import NodeMaker
from tessera_lab.cluster.options import ClusterOptions, parse_nodes
from tessera_lab.kubelet.context import InProcessPlugins
from tessera_lab.kubelet.node.node import SimulatedNode
from tessera_lab.scheduler.scheduler import Scheduler

#: Where Tessera is installed.
_SYSTEM = "tessera-system"


class ImpersonatingTransport:
    """Sends requests over a shared transport under another identity, as ``kubectl --as`` does."""

    def __init__(self, transport: Transport, user: UserInfo) -> None:
        self._transport = transport
        self._headers = {"impersonate-user": user.name}
        if not user.name.startswith("system:serviceaccount:"):  # the server derives their groups from the name
            self._headers["impersonate-group"] = user.groups[0]
        self._extra = {f"impersonate-extra-{key.replace('/', '%2f')}": value[0] for key, value in user.extra.items()}

    def _as(self, request: Request) -> Request:
        return msgspec.structs.replace(request, headers={**request.headers, **self._headers, **self._extra})

    async def request(self, request: Request) -> Response:
        """Sends a request as the user."""
        return await self._transport.request(self._as(request))

    def stream(self, request: Request) -> Any:
        """Opens a stream as the user."""
        return self._transport.stream(self._as(request))

    async def close(self) -> None:
        """Closes nothing, since the transport is shared."""


class ClusterAccess:
    """Makes clients of one API server under any identity, over one pool of connections."""

    def __init__(self, kubeconfig: str, clock: Clock) -> None:
        self._transport = HttpTransport(load_config(clock=clock, kubeconfig=kubeconfig), connections=4000)
        self._clock = clock

    def __call__(self, component: str, user: UserInfo = ADMIN) -> Client:
        """Makes a client; for the kubeconfig's own user if none is named."""
        transport = self._transport if user == ADMIN else ImpersonatingTransport(self._transport, user)
        return Client(transport, field_manager=component, clock=self._clock)

    async def close(self) -> None:
        """Frees the connections."""
        await self._transport.close()


async def run_nodes(
    kubeconfig: str,
    *,
    nodes: str,
    prefix: str,
    label: str,
    taint: Mapping[str, str],
    folder: Path,
    agent: Callable[[str], AgentOptions],
    scheduler: str = "",
    by_claims: Collection[str] = (),
) -> None:
    """Runs nodes until it is cancelled.

    Args:
        kubeconfig: an administrator's.
        nodes: their cards, as ``tessera lab up --nodes`` takes them.
        prefix: prefix of their names.
        label: label of the nodes, with the value ``true``.
        taint: taint of the nodes.
        folder: folder of their files.
        agent: the options of a node's agent, by the node's name.
        scheduler: name of a scheduler that runs beside them; empty for none.
        by_claims: names of the nodes, prefix included, whose agents give slices by ResourceClaims.
    """
    clock = SystemClock()
    access = ClusterAccess(kubeconfig, clock)
    options = ClusterOptions(cdi=folder, publish_every=None, lease_seconds=10.0)
    maker = NodeMaker(options, client=access, clock=clock, rng=_random, entrypoint=None)
    async with asyncio.TaskGroup() as group:
        if scheduler:
            placing = Scheduler(access("kube-scheduler"), clock=clock, rng=_random("scheduler"), name=scheduler)
            group.create_task(placing.run())
        for spec in parse_nodes(nodes):
            name = f"{prefix}{spec.name}"
            labels = {label: "true"} | ({DEVICE_API_LABEL: DEVICE_API_DRA} if name in by_claims else {})
            node = maker.make_node(msgspec.structs.replace(spec, name=name), labels=labels, taints=(dict(taint),))
            group.create_task(node.run())
            group.create_task(_run_agent(node, access, agent(name), folder, clock))


async def _run_agent(
    node: SimulatedNode, access: ClusterAccess, options: AgentOptions, folder: Path, clock: Clock
) -> None:
    """Runs the production agent on a node, as its DaemonSet would start it."""
    assert node.machine is not None
    assert isinstance(node.plugins, InProcessPlugins)
    state = folder / f"{node.name}-state"
    state.mkdir(parents=True, exist_ok=True)
    own = {"cdi_dir": node.plugins.cdi, "state_dir": state, "http_port": None, "markers_dir": None}
    user = msgspec.structs.replace(
        service_account_user(_SYSTEM, "tessera-agent"), extra={"authentication.kubernetes.io/node-name": (node.name,)}
    )
    driver, programs = SimulatedDriver(node.machine, clock), SimulatedPrograms(node.machine, clock)
    client = access("tessera-agent", user)
    await run_lifecycle(
        msgspec.structs.replace(options, **own),
        client,
        driver,
        node.plugins.bus,
        clock,
        rng=_random(node.name),
        programs=programs,
        satellites=node_satellites(options),
    )


def _random(_part: str) -> random.Random:
    """Another sequence in each run: a second run on one server would make Events of names that are there."""
    return random.Random()
