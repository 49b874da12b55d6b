"""The values that most parts of an agent share."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.host import RunOnHost
from tessera.agent.base.metrics import Metrics
from tessera.agent.base.node_objects import ApiMirror, NodeMirror, ObjectEvents
from tessera.agent.base.options import AgentOptions
from tessera.agent.base.processes import ProcessTable
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kubelet.interfaces import Kubelet
from tessera.nvml.asynchronous import AsyncNvml
from tessera.replay.recorder import Recorders
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
class AgentRuntime(AgentEnvironment):
    """One node's agent while one driver is there: what every part of it may need.

    Attributes:
        changes: tells the parts what has changed.
        metrics: the agent's metrics.
        hardware: the node's cards.
        kubelet: the node's kubelet.
        mirror: the node's objects on the API server.
        events: records Kubernetes Events.
        object_events: records Events about the node and its pods.
    """

    changes: ChangeNotifier
    metrics: Metrics
    hardware: AsyncNvml
    kubelet: Kubelet
    mirror: ApiMirror
    events: EventRecorder
    object_events: ObjectEvents

    def state_file(self, name: str) -> Path:
        """The path of a file that outlives the process."""
        return self.options.state_dir / name


def make_runtime(
    environment: AgentEnvironment,
    hardware: AsyncNvml,
    kubelet: Kubelet,
    *,
    node: NodeMirror | None = None,
    changes: ChangeNotifier | None = None,
) -> AgentRuntime:
    """What all components share; ``node`` and ``changes`` outlive the driver, if they are given."""
    options, client, clock, rng = environment.options, environment.client, environment.clock, environment.rng
    mirror = ApiMirror(
        client, node_name=options.node_name, namespace=options.namespace, clock=clock, rng=rng, node=node
    )
    events = EventRecorder(client, component="tessera-agent", instance=options.node_name, clock=clock, rng=rng)
    return AgentRuntime(
        **vars(environment),
        changes=changes or ChangeNotifier(),
        metrics=Metrics(),
        hardware=hardware,
        kubelet=kubelet,
        mirror=mirror,
        events=events,
        object_events=ObjectEvents(events, mirror),
    )
