"""The values that every part of the leading controller needs to work with the cluster."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.replay.recorder import Recorders


@dataclass(frozen=True, kw_only=True)
class KubeRuntime:
    """Access to one cluster for one term of leadership.

    Attributes:
        client: the API server; its identity needs the rights that ``deploy/`` grants to the process.
        clock: the time.
        rng: for jitter; seeded in tests.
        may_act: returns True while this process may write; called before each write.
        recorders: record the decisions of the deciders, if the options ask for it.
    """

    client: Client
    clock: Clock
    rng: random.Random
    may_act: Callable[[], bool] = lambda: True
    recorders: Recorders = field(default_factory=Recorders)
