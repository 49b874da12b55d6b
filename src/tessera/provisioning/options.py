"""Options of provisioning, and their defaults."""

from dataclasses import dataclass

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.api.nodes.node_cards import DISCOVERY_SECONDS

#: Cluster autoscalers read taints with these prefixes as "not started yet"; the second prefix is the older one.
PREFIXES = ("startup-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/")
#: The taint to remove if the options name no others.
STARTUP_TAINT = f"{PREFIXES[0]}tessera-gpu"
#: Seconds from registration.
DEADLINE = DISCOVERY_SECONDS


@dataclass(frozen=True, kw_only=True)
class ProvisioningOptions:
    """Options of :class:`tessera.provisioning.satellite.Provisioning`; times in seconds.

    Attributes:
        namespace: namespace of the ConfigMap of records, which is the deployment's.
        records: maximum number of nodes' records, and of pods'.
        startup_taints: keys of taints to remove from nodes that have started.
        deadline: time that a node may take from its registration.
        grace: time for which a node that is overdue at this controller's start is observed before it is reported.
        replace_failed: maximum number of nodes of one group to replace in an hour; 0 replaces none.
    """

    namespace: str = SYSTEM_NAMESPACE
    records: int = 1000
    startup_taints: tuple[str, ...] = (STARTUP_TAINT,)
    deadline: float = DEADLINE
    grace: float = 60.0
    replace_failed: int = 0
