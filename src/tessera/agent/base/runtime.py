"""The values that most parts of an agent share."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.host import RunOnHost
from tessera.agent.base.metrics import Metrics
from tessera.agent.base.options import AgentOptions
from tessera.agent.base.processes import ProcessTable
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.replay.service import Recorders
from tessera.status_pages import JsonDocuments

#: Reboots the node, or asks for that; returns or raises OSError soon, and the machine goes down after that.
RebootNode = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class AgentEnvironment:
    """One node's agent for the life of its process, whatever driver is there.

    Attributes:
        options: the node's name, folders and settings.
        client: the API server; its identity needs the rights that ``deploy/`` grants to the agent.
        clock: the time.
        rng: for jitter; seeded in tests.
        host: runs commands on the host, which reboot it; ``None`` if nothing can.
        recorders: record the decisions of the deciders, if the options ask for it.
        processes: the machine's processes.
        publish: takes the agent's own pages where no port serves them; ``None`` for nobody.
    """

    options: AgentOptions
    client: Client
    clock: Clock
    rng: random.Random
    host: RunOnHost | None
    recorders: Recorders
    processes: ProcessTable = field(default_factory=ProcessTable)
    publish: Callable[[JsonDocuments], None] | None = None


@dataclass(frozen=True, kw_only=True)
class AgentRuntime:
    """One node's agent while one driver is there.

    Attributes:
        options: the node's name, folders and settings.
        client: the API server.
        events: records Kubernetes Events.
        changes: wakes every part when a value changed.
        clock: the time.
        metrics: the agent's metrics.
        rng: for jitter.
        recorders: record the decisions of the deciders.
    """

    options: AgentOptions
    client: Client
    events: EventRecorder
    changes: ChangeNotifier
    clock: Clock
    metrics: Metrics
    rng: random.Random
    recorders: Recorders
