"""The runbooks, played from top to bottom in labs that have the fault of their alert; see :mod:`tests.support.pages`.

Tessera is a release of Helm where pages change values. Labs run on virtual time. What people do on a node itself
is played by the lab: a reboot is one of the simulated node, and repaired hardware is a mended card.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from monitoring.alerts import ALERTS
from tests.e2e.runbook_faults import DRILLS, PROFILE
from tests.support.command_line import start_lab
from tests.support.pages import ROOT, Page, Shell
from tests.support.running_lab import RunningLab

from tessera.api.nodes.node_marks import CORDON_PREFIX
from tessera_lab.daemon.lab_folder import stop

RUNBOOKS = ROOT / "docs" / "runbooks"
#: Commands on a node itself, and what they are in a lab.
ON_THE_NODE: Mapping[str, str] = {
    "ssh $NODE sudo systemctl reboot": "tessera lab reboot $NODE > /dev/null",
    "ssh $NODE nvidia-smi -L": "tessera lab smi $NODE",
}
#: Programs of the other commands.
PROGRAMS = ("export", "helm", "kubectl", "tessera")
OVER = "## How to see that it is over"

StartLab = Callable[[tuple[str, ...]], RunningLab]


@pytest.fixture(scope="module")
def lab_of() -> Iterator[StartLab]:
    """The lab with these arguments, which several pages share."""
    top = Path(tempfile.mkdtemp(prefix="tl-", dir="/tmp"))
    labs: dict[tuple[str, ...], RunningLab] = {}

    def find(arguments: tuple[str, ...]) -> RunningLab:
        if arguments not in labs:
            labs[arguments] = lab = RunningLab(start_lab(top / str(len(labs)), ["--virtual-time", *arguments]))
            if arguments in labs_of_helm():
                lab.helm("install", "tessera", "charts/tessera", "-n", "tessera-system", "--take-ownership", "--wait")
        return labs[arguments]

    try:
        yield find
    finally:
        for lab in labs.values():
            stop(lab.folder)
        shutil.rmtree(top, ignore_errors=True)


def page_of(alert: str) -> Page:
    return Page(RUNBOOKS / f"{alert}.md", ON_THE_NODE)


def labs_of_helm() -> set[tuple[str, ...]]:
    """The arguments of the labs in which pages run Helm; in the others, Tessera is installed by the lab."""
    return {
        drill.lab
        for alert, drill in DRILLS.items()
        if any(command.startswith("helm ") for command, _ in page_of(alert).steps())
    }


def test_every_alert_has_a_drill() -> None:
    assert set(DRILLS) == {each.name for each in ALERTS}


@pytest.mark.parametrize("alert", DRILLS)
def test_every_command_of_a_page_can_be_played(alert: str) -> None:
    """Each stands in a block of its own or begins one that does, and needs nothing that a lab does not have."""
    page = page_of(alert)
    assert page.languages == {"console"}
    commands = [command for command, _ in page.steps()]
    for command in commands:
        assert command in ON_THE_NODE or command.split()[0] in PROGRAMS, command
    for quoted in re.findall(r"`((?:helm|kubectl|ssh|tessera) [^`]+)`", (RUNBOOKS / f"{alert}.md").read_text()):
        assert any(command.startswith(quoted) for command in commands), f"`{quoted}` is in no block of the page"


@pytest.mark.parametrize(
    "alert",
    [
        pytest.param(name, marks=[pytest.mark.soak] if drill.is_long else [])
        for name, drill in sorted(DRILLS.items(), key=lambda each: each[1].lab)
    ],
)
def test_a_page_ends_the_fault_of_its_alert(lab_of: StartLab, alert: str) -> None:
    drill = DRILLS[alert]
    lab = lab_of(drill.lab)
    until, after = page_of(alert).parted(OVER)
    shell = Shell(lab.folder, {"KUBECONFIG": str(lab.kubeconfig), "COLUMNS": "100"})

    def wait(pause: float) -> None:
        """A second between two looks is a minute of virtual time."""
        lab.pass_time(int(60 * pause))

    try:
        drill.fault(lab)
        until.play(shell, wait)
        drill.repair(lab)
        after.play(shell, wait)
    finally:
        clean(lab)


def clean(lab: RunningLab) -> None:
    """Removes what a drill made beside its fault."""
    if any(each["metadata"]["name"] == "research" for each in lab.get("namespaces")["items"]):
        lab.kubectl("delete", "namespace", "research")
    if lab.get("pods")["items"]:
        lab.kubectl("delete", "pods", "--all")
    for node in lab.get("nodes")["items"]:
        name, meta = node["metadata"]["name"], node["metadata"]
        if PROFILE in meta["labels"]:
            lab.kubectl("label", "node", name, f"{PROFILE}-")
        if node["spec"].get("unschedulable"):
            lab.kubectl("uncordon", name)
        cards = [f"{key}-" for key in meta.get("annotations", {}) if key.startswith(CORDON_PREFIX)]
        if cards:
            lab.kubectl("annotate", "node", name, *cards)
