"""Memory limits as a satellite of the agent."""

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.main.satellites import MemoryInputs
from tessera.kube.eviction import Evictor
from tessera.memory_limits.enforcement import MemoryEnforcement
from tessera.memory_limits.monitor import MemoryMonitor, ProcessMemoryReader
from tessera.memory_limits.policy import MemoryPolicy, MemoryRules


def watch_memory(runtime: AgentRuntime, inputs: MemoryInputs) -> MemoryMonitor:
    """Makes the monitor of a node, with the mode of the agent's options."""
    mode = runtime.options.memory_limits
    reader = ProcessMemoryReader(runtime.hardware, runtime.processes)
    return MemoryMonitor(
        runtime,
        reader=reader,
        policy=MemoryPolicy(MemoryRules(mode=mode)),
        enforcement=MemoryEnforcement(
            mode=mode,
            processes=runtime.processes,
            read_card=reader.read,
            evictor=Evictor(runtime.client),
            record=runtime.object_events.record_on_pod,
            metrics=runtime.metrics,
        ),
        inputs=inputs,
    )
