"""A lab that runs as a process of its own, driven from outside as a user does: by the API and the command line."""

from pathlib import Path

from tests.support.cluster_user import ROOT, TIMEOUT, ClusterUser

from tessera_lab.daemon.lab_folder import LabState

__all__ = ["ROOT", "TIMEOUT", "RunningLab"]


class RunningLab(ClusterUser):
    """A running lab, with its folder of simulated machines beside its API."""

    def __init__(self, state: LabState) -> None:
        super().__init__(Path(state.kubeconfig))
        self.state = state
        self.folder = self.kubeconfig.parent

    def pass_time(self, seconds: int) -> None:
        """Lets virtual time pass: a container that ends by itself runs that long."""
        name = f"clock-{seconds}"
        self.kubectl("apply", "-f", "-", manifest=self.pod(name, {}, command=("sleep", str(seconds))))
        self.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s")
        self.kubectl("delete", "pod", name)
