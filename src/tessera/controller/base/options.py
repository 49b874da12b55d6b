"""Options of the controller process."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tessera.driver.run import DriverOptions
from tessera.provisioning.options import ProvisioningOptions

#: Receives (address, port) of a server once it listens.
OnListening = Callable[[str, int], None]


@dataclass(frozen=True, kw_only=True)
class RegistryOptions:
    """How registries of driver images are reached.

    Attributes:
        ca: certificates of authorities that are trusted beside the system's, PEM.
        plain_http: hosts (with port) that are asked without TLS.
    """

    ca: Path | None = None
    plain_http: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ControllerOptions:
    """Options of :func:`tessera.controller.main.run.run`.

    Attributes:
        identity: this replica in the Lease, unique in the cluster: the pod's name.
        namespace: where the Lease lives, the deployment's namespace.
        lease_name: the Lease that names the leader.
        leader_election: without it this process acts at once; only for a single replica that nothing restarts in
            parallel.
        http_address: where ``/metrics``, ``/healthz`` and ``/readyz`` are served; None for all addresses, IPv6 too.
        http_port: None serves nothing (no sockets are opened), 0 picks a free port.
        on_listening: told the port once it is open.
        on_leading: called when this replica begins to act.
        drivers: how drivers are managed, where a ClusterPolicy asks for that.
        registries: how their images' registries are reached.
        provisioning: how nodes are followed on their way to usable cards.
    """

    identity: str
    namespace: str = "tessera-system"
    lease_name: str = "tessera-controller"
    leader_election: bool = True
    http_address: str | None = None
    http_port: int | None = 8080
    on_listening: OnListening | None = None
    on_leading: Callable[[], None] | None = None
    drivers: DriverOptions = field(default_factory=DriverOptions)
    registries: RegistryOptions = field(default_factory=RegistryOptions)
    provisioning: ProvisioningOptions = field(default_factory=ProvisioningOptions)
