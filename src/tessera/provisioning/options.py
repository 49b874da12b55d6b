"""What the part of the controller that looks after provisioning is told at start."""

from dataclasses import dataclass

from tessera.provisioning.startup import DEADLINE, STARTUP_TAINT


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
