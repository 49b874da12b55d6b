"""The cluster that ``tessera demo --keep`` leaves: every way to give cards, and a scenario in which pods come and go.

Cards of node-1 and node-2 are cut on demand. Those of node-3 are fixed instances, shares, and two whole cards, by a
layout and a profile that are written as a user would: into the ConfigMaps that an installation brings.
"""

import shlex
import shutil
import sys
from pathlib import Path

import msgspec

from tessera.api.names import MIG_CONFIG_LABEL, OWN_LAYOUTS, OWN_PROFILES, SYSTEM_NAMESPACE
from tessera.api.sharing.profile import PROFILE_LABEL
from tessera.kube.client import Client
from tessera.kube.resources import CONFIGMAPS, NODES
from tessera_lab.activity.scenario import builtin_text
from tessera_lab.daemon import lab_folder
from tessera_lab.daemon.lab_folder import LabState
from tessera_lab.daemon.scenario_control import ScenarioRequest

#: The nodes, and the scenario on them.
NODES_KEPT, SCENARIO = "4xA100-40GB,4xH100-80GB,4xH100-80GB", "busy-cluster"
#: The node with fixed instances, shares and whole cards.
MIXED, NAME = "node-3", "demo"
LAYOUT = f"""\
version: v1
mig-configs:
  {NAME}:
  - devices: [0]
    mig-enabled: true
    mig-devices: {{"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}}
  - devices: [1, 2, 3]
    mig-enabled: false
"""
#: Fixed instances have names of their own, since slices on demand of node-2 have the usual ones.
PROFILE = """\
version: v1
resources:
  gpus:
  - {pattern: "*", name: gpu}
  mig:
  - {pattern: 1g.10gb, name: mig-1g.10gb.fixed}
  - {pattern: 2g.20gb, name: mig-2g.20gb.fixed}
  - {pattern: 3g.40gb, name: mig-3g.40gb.fixed}
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      rename: nvidia.com/gpu.shared
      devices: [1]
      replicas: 4
"""
_NEXT = """\
The simulated cluster goes on running, and pods come, wait, work and go in it: scenario {scenario}.
Live page: {page}

Three things to try, after
  export KUBECONFIG={kubeconfig}{path}

1. Why does a pod wait, and until when? At most eight of these nine fit.
  kubectl scale deployment vllm --replicas 9
  tessera why deployment/vllm
  tessera queue --all-namespaces
2. Who has which card, and who uses it?
  tessera map
  tessera top
3. What if a card fails? The driver reports that it fell off the bus.
  tessera lab break gpu node-2/0 --xid 79
  tessera why node/node-2
  tessera lab reboot node-2

Other scenarios are listed by tessera lab scenario. End the cluster with
  tessera lab down
"""


async def prepare(client: Client) -> None:
    """Gives the cards of the mixed node their kinds."""
    await client.merge_patch(CONFIGMAPS.as_dicts(), OWN_LAYOUTS, {"data": {f"{NAME}.yaml": LAYOUT}}, SYSTEM_NAMESPACE)
    await client.merge_patch(CONFIGMAPS.as_dicts(), OWN_PROFILES, {"data": {NAME: PROFILE}}, SYSTEM_NAMESPACE)
    labels = {MIG_CONFIG_LABEL: NAME, PROFILE_LABEL: NAME}
    await client.merge_patch(NODES.as_dicts(), MIXED, {"metadata": {"labels": labels}})


def play_scenario(lab: LabState) -> None:
    """Lets the cluster live."""
    request = ScenarioRequest(name=SCENARIO, text=builtin_text(SCENARIO))
    lab_folder.send_request(Path(lab.kubeconfig).parent, "scenario", msgspec.json.encode(request).decode())


def next_steps(lab: LabState) -> str:
    """What to try, and how to end the cluster."""
    return _NEXT.format(scenario=SCENARIO, page=lab.page, kubeconfig=shlex.quote(lab.kubeconfig), path=_path())


def _path() -> str:
    """The line that adds ``tessera`` to the shell's path; empty if the shell finds it already."""
    if shutil.which("tessera"):
        return ""
    return f"\n  export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
