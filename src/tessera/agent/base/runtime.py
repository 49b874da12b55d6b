"""The values that most parts of an agent share."""

import random
from dataclasses import dataclass

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.metrics import Metrics
from tessera.agent.base.options import AgentOptions
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.replay.service import Recorders


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
