"""Options of provisioning, and their defaults."""

from dataclasses import dataclass

#: Taints of these prefixes mean "not started yet" to cluster autoscalers; the second is the older one.
PREFIXES = ("startup-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/")
#: The taint that is taken off unless others are named.
STARTUP_TAINT = f"{PREFIXES[0]}tessera-gpu"
#: Seconds from registration; what authors of the cluster autoscaler plan for a GPU to become allocatable.
DEADLINE = 900.0


@dataclass(frozen=True, kw_only=True)
class ProvisioningOptions:
    """Options of :class:`tessera.provisioning.run.Provisioning`; times in seconds.

    Attributes:
        namespace: where the ConfigMap of records lives, the deployment's namespace.
        records: how many nodes' records are kept, and how many pods'.
        startup_taints: keys of taints that are taken off nodes that have started.
        deadline: how long a node may take from its registration.
        grace: how long a node that is overdue when this controller begins is looked at before that is said.
        replace_failed: nodes of one group that are replaced in an hour at most; 0 replaces none.
    """

    namespace: str = "tessera-system"
    records: int = 1000
    startup_taints: tuple[str, ...] = (STARTUP_TAINT,)
    deadline: float = DEADLINE
    grace: float = 60.0
    replace_failed: int = 0
