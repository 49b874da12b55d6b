"""What runs beside the core in the controller's process: the core starts satellites, and knows none of them.

A satellite is a value with its options. The process opens it once, and each term of leadership is joined once. A
satellite reads the slicer and the informers, and writes through the API server; other parts of the process see nothing
else of it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from tessera.clock import Clock
from tessera.controller.slicing.kinds.request_kind import RequestKind
from tessera.controller.slicing.planning.proposals import Proposer
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.kube.client.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.resources import Node, Pod
from tessera.kube.runtime import KubeRuntime
from tessera.kube.watch.informer import Informer


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
    """

    client: Client
    clock: Clock
    rng: random.Random
    registry: CollectorRegistry
    pages: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    kinds: list[Callable[[SlicerState], RequestKind]] = field(default_factory=list)
    proposers: list[Callable[[SlicerState], Sequence[Proposer]]] = field(default_factory=list)


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
    may_bring_nodes: list[Callable[[], bool]] = field(default_factory=list)
    at_end: ExitStack = field(default_factory=ExitStack)


class Satellite(Protocol):
    """A part of the controller that can be left out."""

    def open(self, process: Process) -> AbstractAsyncContextManager[Callable[[Term], None]]:
        """Prepares it for this process; the result joins a term.

        Raises:
            TesseraError: an option is wrong; the text names it.
        """
        ...
