"""What an agent is told when it starts: values only. Whoever starts it makes client, cards and kubelet from them."""

from pathlib import Path

import msgspec

from tessera.api.names import INSTASLICE_NAMESPACE
from tessera.kubelet.sockets import PLUGIN_DIR


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One node's agent.

    Attributes:
        node_name: the Node object's name; also the Instaslice object's.
        kubelet_root: kubelet's ``--root-dir``.
        plugin_dir: where kubelet's ``kubelet.sock`` lies. Kubelet has it in one place whatever its ``--root-dir`` says.
        pod_resources_dir: where kubelet's pod-resources socket lies; below ``kubelet_root`` unless given.
        cdi_dir: where the container runtime reads CDI files from. Files there do not survive a reboot.
        state_dir: where the journal lies. It must survive a restart of the agent, it need not survive a reboot.
        simulate: cards to simulate, e.g. ``4xA100-40GB``; ``None`` for the machine's own cards.
        simulated_state: file that keeps the simulated cards over restarts; in ``state_dir`` unless given.
        namespace: where the Instaslice objects lie.
        http_port: where ``/metrics``, ``/healthz`` and ``/readyz`` are served; ``None`` for nowhere.
        claim_timeout: seconds that PreStartContainer waits for a slice; kubelet itself gives up after 30.
    """

    node_name: str
    kubelet_root: Path = Path("/var/lib/kubelet")
    plugin_dir: Path = PLUGIN_DIR
    pod_resources_dir: Path | None = None
    cdi_dir: Path = Path("/var/run/cdi")
    state_dir: Path = Path("/var/lib/tessera")
    simulate: str | None = None
    simulated_state: Path | None = None
    namespace: str = INSTASLICE_NAMESPACE
    http_port: int | None = None
    claim_timeout: float = 25.0

    @property
    def pod_resources(self) -> Path:
        """The folder of the pod-resources socket."""
        return self.pod_resources_dir or self.kubelet_root / "pod-resources"

    @property
    def simulated_file(self) -> Path:
        """The file of the simulated cards."""
        return self.simulated_state or self.state_dir / "simulated-cards.json"

    @property
    def journal_file(self) -> Path:
        """The file of what this agent made."""
        return self.state_dir / "journal.json"
