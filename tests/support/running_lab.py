"""A lab that runs as a process of its own, driven from outside as a user does: by the API and the command line."""

import asyncio
import random
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.cluster_user import ROOT, TIMEOUT, ClusterUser

from tessera.clock import SystemClock
from tessera.kube.client.client import Client
from tessera.kube.resources import PODS, Pod
from tessera.kube.transport.http import HttpTransport
from tessera.kube.transport.kubeconfig import load_config
from tessera.kube.watch.informer import Informer, InformerGroup
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
        asyncio.run(_play_pod(self.kubeconfig, self.pod(f"clock-{seconds}", {}, command=("sleep", str(seconds)))))


async def _play_pod(kubeconfig: Path, pod: dict[str, Any]) -> None:
    """Creates a pod, and deletes it once it has succeeded; kubectl would start three times for that."""
    name, clock = pod["metadata"]["name"], SystemClock()
    transport = HttpTransport(load_config(clock=clock, kubeconfig=str(kubeconfig)))
    client = Client(transport, field_manager="test", clock=clock)
    pods: Informer[Pod] = Informer(client, PODS, clock=clock, rng=random.Random(0), namespace="default")
    watched, key = InformerGroup(pods), f"default/{name}"
    try:
        async with watched.running():
            await client.create(PODS.as_dicts(), pod, "default")
            await watched.wait_until(lambda: _has_ended(pods.cache.get(key)), TIMEOUT, f"{name} has ended")
            await client.delete(PODS, name, "default")
            await watched.wait_until(lambda: key not in pods.cache, TIMEOUT, f"{name} is gone")
    finally:
        await transport.close()


def _has_ended(pod: Pod | None) -> bool:
    return pod is not None and pod.status.phase == "Succeeded"
