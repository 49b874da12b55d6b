"""Options of the controller process, and its satellites: what runs beside the core, which starts them and knows none.

A satellite is a value with its options. The process opens it once, and each term of leadership is joined once. A
satellite reads the slicer and the informers, and writes through the API server; other parts of the process see nothing
else of it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.clock import Clock
from tessera.controller.base import BreakerLimits, MoveSettings
from tessera.controller.objects.pod_info import OwnerReader
from tessera.controller.slicing.kinds import RequestKind
from tessera.controller.slicing.proposals import Proposer
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.kube.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.informer import Informer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import Node, Pod
from tessera.replay.recorder import SOCKET
from tessera.status_pages import OnListening


@dataclass(frozen=True, kw_only=True)
class Process:
    """What a satellite gets for as long as the process runs.

    Attributes:
        client: the API server; for reads, since another replica may lead.
        clock: gives the time.
        rng: for jitter.
        registry: the process's metrics.
        pages: documents of the process's port, by path; a satellite adds its own.
        kinds: make the kinds of requests beside the core's; a satellite adds its own.
        proposers: make the proposers of a slicer beside the core's; a satellite adds its own.
        at_end: called when the process ends.
    """

    client: Client
    clock: Clock
    rng: random.Random
    registry: CollectorRegistry
    pages: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    kinds: list[Callable[[SlicerState], RequestKind]] = field(default_factory=list)
    proposers: list[Callable[[SlicerState], Sequence[Proposer]]] = field(default_factory=list)
    at_end: AsyncExitStack = field(default_factory=AsyncExitStack)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Something that runs until the term ends.

    Attributes:
        name: the name of its task.
        run: runs until cancelled.
        at_once: True to begin before nodes, pods and records are listed.
        wait_listed: returns once the slicer has what it must know from this task; nothing is decided before.
    """

    name: str
    run: Callable[[], Coroutine[Any, Any, None]]
    at_once: bool = False
    wait_listed: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, kw_only=True)
class Term:
    """What a satellite gets for one term of leadership, and what it adds.

    Attributes:
        runtime: access to the cluster; writes are refused once the term is over.
        namespace: the deployment's.
        slicer: the state machine; it has taken in each change of a pod before a satellite's handler sees it.
        pods: all pods; run by the core.
        nodes: all nodes; run by the core.
        events: records Events; run by the core.
        wake: has the slicer decide, after it was told an event.
        tasks: what runs; a satellite adds its own.
        after_step: set after each step of the slicer; a satellite keeps its event here while it waits for one.
        asked: set after each step in which a proposer asks for something (:attr:`.Proposer.asks`).
        owner_readers: the first reads what the owner that a pod names belongs to; a satellite adds its own.
        may_bring_nodes: each tells if nodes may still come by what it knows.
        at_end: called when the term is over.
    """

    runtime: KubeRuntime
    namespace: str
    slicer: Slicer
    pods: Informer[Pod]
    nodes: Informer[Node]
    events: EventRecorder
    wake: Callable[[], None]
    tasks: list[Task] = field(default_factory=list)
    after_step: set[asyncio.Event] = field(default_factory=set)
    asked: set[asyncio.Event] = field(default_factory=set)
    owner_readers: list[OwnerReader] = field(default_factory=list)
    may_bring_nodes: list[Callable[[], bool]] = field(default_factory=list)
    at_end: ExitStack = field(default_factory=ExitStack)


class Satellite(Protocol):
    """A part of the controller that can be left out."""

    def open(self, process: Process) -> Callable[[Term], None]:
        """Prepares it for this process; the result joins a term.

        Raises:
            ValueError: an option is wrong; the text names it.
        """
        ...


#: Seconds that a pod waits for room before slots are reserved for it; a slice goes from pod to pod in a few seconds.
RESERVE_AFTER = 60.0


@dataclass(frozen=True, kw_only=True)
class ControllerOptions:
    """Options of :func:`tessera.controller.main.run`.

    Attributes:
        identity: name of this replica in the Lease, unique in the cluster: the pod's name.
        namespace: namespace of the Lease, the deployment's.
        lease_name: name of the Lease that names the leader.
        leader_election: False lets this process act at once; only for a single replica that nothing restarts in
            parallel.
        http_address: address that serves ``/metrics``, ``/healthz`` and ``/readyz``; None for all addresses, IPv6 too.
        http_port: None serves nothing (no sockets are opened), 0 picks a free port.
        open_metrics: True to show ``/metrics`` to readers without a token.
        on_listening: called with the address and port once the port is open.
        on_leading: called when this replica begins to act.
        record: decisions to keep of each decider, for ``tessera debug record``; 0 keeps none.
        record_socket: name of the socket that serves the records.
        breaker: the most cards that one rule of health takes away.
        reserve_after: seconds that a pod waits for room before slots are reserved for it; None reserves none.
        preempt: True to evict pods of lower priority for waiting pods.
        moves: what is done to make room by moves.
        preferences: what pods' preferences may cost the cards, a key of
            :data:`~tessera.controller.base.PREFERENCE_PRICES`.
        satellites: what runs beside the core; see :mod:`tessera.controller.satellite`.
    """

    identity: str
    namespace: str = SYSTEM_NAMESPACE
    lease_name: str = "tessera-controller"
    leader_election: bool = True
    http_address: str | None = None
    http_port: int | None = 8080
    open_metrics: bool = False
    on_listening: OnListening | None = None
    on_leading: Callable[[], None] | None = None
    record: int = 0
    record_socket: str = SOCKET
    breaker: BreakerLimits = field(default_factory=BreakerLimits)
    reserve_after: float | None = RESERVE_AFTER
    preempt: bool = False
    moves: MoveSettings = field(default_factory=MoveSettings)
    preferences: str = "ties"
    satellites: Sequence[Satellite] = ()
