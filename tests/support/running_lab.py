"""A lab that runs as a process of its own, driven from outside as a user does: by the API and the command line."""

import urllib.error
import urllib.request
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

    def page_token(self, account: str = "tessera-reader", *options: str) -> str:
        """A token of an account that may read pages of Tessera's ports; it outlives leaps of virtual time."""
        return self.kubectl("create", "token", account, "-n", "tessera-system", "--duration=8760h", *options).strip()

    def read_page(self, url: str, token: str = "") -> tuple[int, str]:
        """Status and text of a page, as a client beside the API server gets it; status 0 if nobody answers."""
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (urllib.error.URLError, ConnectionError):
            return 0, ""

    def pass_time(self, seconds: int) -> None:
        """Lets virtual time pass: a container that ends by itself runs that long."""
        name = f"clock-{seconds}"
        self.apply(self.pod(name, {}, command=("sleep", str(seconds))))
        self.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s")
        self.kubectl("delete", "pod", name)
