"""The runtime of an agent's parts, without those that a test does not use."""

import random
from dataclasses import fields
from typing import Any

from tessera.agent.base.runtime import AgentRuntime, Metrics
from tessera.agent.base.settings import AgentOptions
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.replay.recorder import Recorders


def make_parts(**parts: Any) -> AgentRuntime:
    """A runtime with these parts; one that is neither given nor cheap to make is None, so that nothing can use it."""
    cheap: dict[str, Any] = {
        "options": AgentOptions(node_name="node-1"),
        "rng": random.Random(1),
        "recorders": Recorders(),
        "changes": ChangeNotifier(),
        "metrics": Metrics(),
    }
    absent: dict[str, Any] = dict.fromkeys(each.name for each in fields(AgentRuntime))
    return AgentRuntime(**(absent | cheap | parts))
