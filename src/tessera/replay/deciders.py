"""The deciders that can be replayed."""

from collections.abc import Mapping

from tessera.replay.player import DeciderKind

_NVML = "tessera.nvml.interface"

#: By the kind that a record names.
DECIDERS: Mapping[str, DeciderKind] = {
    "slicer": DeciderKind(
        decider="tessera.controller.slicing.slicer:Slicer",
        modules=("tessera.controller", "tessera.api", "tessera.kube", "tessera.placement", "tessera.mig"),
    ),
    "slices": DeciderKind(
        decider="tessera.agent.slices.state_machine:SliceStateMachine",
        modules=("tessera.agent.slices", "tessera.agent.inventory"),
    ),
    "mig-config": DeciderKind(
        decider="tessera.agent.mig_config.state_machine:CardStateMachine",
        modules=("tessera.agent.mig_config", "tessera.agent.inventory", "tessera.mig", _NVML),
    ),
    "health": DeciderKind(
        decider="tessera.agent.health.faults:HealthStateMachine",
        modules=("tessera.agent.health", "tessera.agent.inventory", _NVML),
    ),
}
