"""For every alert a scenario in a lab that fires it, and one that does not.

Each alert's expression is evaluated, without its ``for``, on what the processes of the lab print before and after the
scenario. Labs run on virtual time, which leaps to the end of a scenario.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring.alerts import ALERTS
from tests.monitoring.conftest import Promtool
from tests.monitoring.lab_scrapes import Values, expectation, scrape
from tests.support.command_line import start_lab
from tests.support.running_lab import ROOT, RunningLab

from tessera_lab.activity.scenario import builtin_text
from tessera_lab.daemon.lab_folder import send_request, stop

ALL = [each.name for each in ALERTS]
POLICY = yaml.safe_load((ROOT / "examples" / "drivers" / "cluster-policy.yaml").read_text(encoding="utf-8"))
#: The lab's registries have this driver, and it hangs.
HANGING, GOOD = "535.129.03", "535.104.05"


class Course:
    """A lab with its scrapes, and the expectations that they lead to.

    Attributes:
        expected: unit tests for promtool.
        fired: names of alerts that fired.
    """

    def __init__(self, lab: RunningLab) -> None:
        self.lab = lab
        self.expected: list[Any] = []
        self.fired: set[str] = set()
        self._last: Values = scrape(lab)

    def expect(self, *firing: str, silent: Sequence[str] = ()) -> None:
        """Scrapes, and expects from the time since the last scrape that these alerts fire and those do not."""
        before, self._last = self._last, scrape(self.lab)
        self.fired.update(firing)
        self.expected.append(
            expectation(before, self._last, {**dict.fromkeys(silent, False), **dict.fromkeys(firing, True)})
        )

    def play(self, name: str, **changes: Any) -> None:
        """Plays a built-in scenario to its end."""
        text = json.dumps({**yaml.safe_load(builtin_text(name)), **changes})
        send_request(self.lab.folder, "scenario", json.dumps({"name": name, "text": text}))
        self.lab.eventually(lambda: "is over" in send_request(self.lab.folder, "scenario-status"))

    def stop(self) -> None:
        """Ends the scenario, and waits until its pods are gone."""
        send_request(self.lab.folder, "scenario-stop")
        self.lab.eventually(lambda: "no scenario" in send_request(self.lab.folder, "scenario-status"))
        self.lab.eventually(lambda: not self.lab.get("pods", "-A", "-l", "lab.tessera.dev/scenario")["items"])


@contextmanager
def running_lab(*arguments: str) -> Iterator[RunningLab]:
    top = Path(tempfile.mkdtemp(prefix="tl-", dir="/tmp"))
    try:
        yield RunningLab(start_lab(top / "lab", ["--virtual-time", "--mig-config", "", *arguments]))
    finally:
        stop(top / "lab")
        shutil.rmtree(top, ignore_errors=True)


def on_slices(course: Course) -> None:
    """Cards that are cut on demand."""
    lab = course.lab
    lab.kubectl("label", "node", "node-1", "nvidia.com/mig.config=dynamic")
    lab.eventually(lambda: "nvidia.com/mig-1g.5gb" in lab.get("node", "node-1")["status"]["allocatable"])
    course.play("busy-and-healthy", lasts="16m")
    course.expect(silent=ALL)
    course.stop()
    course.play("full-memory", lasts="11m")
    course.expect("TesseraGpuMemoryNearlyFull", silent=["TesseraPodStarving", "TesseraContainersWithoutSlice"])
    course.stop()
    course.play("broken-slices", lasts="2m")
    course.expect("TesseraContainersWithoutSlice", silent=["TesseraGpuMemoryNearlyFull", "TesseraGpuHot"])
    course.stop()
    course.play("fragmented", lasts="7m")
    course.expect("TesseraFragmented", silent=["TesseraPodStarving", "TesseraGpuThrottled"])
    course.stop()
    course.play("crowded", lasts="32m")
    course.expect("TesseraPodStarving", silent=["TesseraFragmented"])
    course.stop()


def on_bad_cards(course: Course) -> None:
    """Whole cards with faults."""
    course.play("power-brake", lasts="80s")
    course.expect("TesseraGpuThrottled", silent=["TesseraGpuHot", "TesseraGpuUnhealthy", "TesseraCardNeedsReboot"])
    course.stop()
    course.play("hot-card", lasts="80s")
    course.expect("TesseraGpuHot", "TesseraGpuThrottled", silent=["TesseraGpuUnhealthy", "TesseraConditionFalse"])
    course.stop()
    # A card that a pod holds is not reset, so its fault stays.
    course.play("failing-memory", lasts="80s", pods=[{"name": "holder", "request": {"nvidia.com/gpu": 1}}])
    course.expect("TesseraGpuUnhealthy", silent=["TesseraCardNeedsReboot"])
    course.stop()
    course.play("lost-card", lasts="80s")
    course.expect("TesseraCardNeedsReboot", "TesseraConditionFalse", silent=["TesseraGpuHot"])
    course.stop()


def on_one_error(course: Course) -> None:
    """The same error on all cards of two nodes."""
    lab = course.lab
    course.play("lost-card", lasts="80s")
    course.expect(silent=["TesseraHealthBreakerOpen"])
    course.stop()
    course.play("same-error", lasts="70s")
    lab.eventually(lambda: any("spared" in name and value for name, value in scrape(lab).items()))
    course.expect("TesseraHealthBreakerOpen")


def on_idle_and_shared_cards(course: Course) -> None:
    """A whole card that nobody uses, and a shared one that somebody uses too much."""
    lab = course.lab
    course.play("idle-holder", lasts="12m")
    course.expect("TesseraGpuIdleButHeld", silent=["TesseraPodMemoryNearLimit"])
    course.stop()
    values = ("--values", "examples/sharing/values.yaml", "--namespace", "kube-system")
    lab.tessera("install", *values, "--no-drivers")
    lab.kubectl("apply", "-f", "examples/sharing/time-slicing-config.yaml")
    lab.kubectl("rollout", "status", "-n", "tessera-system", "daemonset/tessera-agent", "--timeout=180s")
    lab.kubectl("label", "node", "node-1", "nvidia.com/device-plugin.config=slice-4")
    lab.eventually(lambda: lab.get("node", "node-1")["status"]["allocatable"].get("nvidia.com/gpu.shared") == "8")
    course.play("memory-hog", lasts="6m")
    course.expect("TesseraPodMemoryNearLimit", silent=["TesseraGpuIdleButHeld", "TesseraGpuMemoryNearlyFull"])
    course.stop()


def on_silent_processes(course: Course) -> None:
    """Agents that do not start, and a controller that is switched off."""
    lab = course.lab
    course.expect(silent=["TesseraAgentSilent", "TesseraNoLeader"])
    arguments = [{"op": "add", "path": "/spec/template/spec/containers/0/command/-", "value": "--no-such-option"}]
    lab.kubectl(
        "patch", "daemonset", "tessera-agent", "-n", "tessera-system", "--type=json", f"-p={json.dumps(arguments)}"
    )
    lab.eventually(lambda: has_restarted(lab))
    lab.kubectl("scale", "-n", "tessera-system", "deployment/tessera-controller", "--replicas=0")
    lab.eventually(lambda: not lab.get("pods", "-A", "-l", "app.kubernetes.io/name=tessera-controller")["items"])
    course.expect("TesseraAgentSilent", "TesseraNoLeader")


def has_restarted(lab: RunningLab) -> bool:
    """True if an agent's container has ended again and again."""
    pods = lab.get("pods", "-n", "tessera-system", "-l", "app.kubernetes.io/name=tessera-agent")["items"]
    statuses = [each for pod in pods for each in pod["status"].get("containerStatuses", ())]
    return any(each["restartCount"] > 0 for each in statuses)


def on_new_nodes(course: Course) -> None:
    """New nodes whose driver hangs, so that the autoscaler makes and removes them again and again."""
    lab = course.lab
    apply_policy(lab, HANGING)
    course.expect(silent=["TesseraNodesOverdue", "TesseraProvisioningLoop"])
    lab.apply(lab.pod("wants", {"nvidia.com/gpu": 1}))
    lab.eventually(lambda: lost_nodes(scrape(lab)) >= 3)
    course.expect("TesseraNodesOverdue", "TesseraProvisioningLoop", silent=["TesseraNoLeader"])


def lost_nodes(values: Values) -> float:
    return sum(value for name, value in values.items() if name.startswith("tessera_provisioning_lost_nodes_total"))


def on_drivers(course: Course) -> None:
    """A driver that works, a next kernel without an image, and a driver that does not work."""
    lab = course.lab
    apply_policy(lab, GOOD)
    lab.eventually(lambda: driver_phases(lab) == {"ready"})
    course.expect(silent=["TesseraDriverRolloutStopped", "TesseraNextKernelWithoutDriver"])
    kernels = {"data": {"rhcos4.13": "5.14.0-999.1.1.el9_2.x86_64"}, "metadata": {"name": "driver-next-kernels"}}
    lab.kubectl(
        "apply", "-n", "tessera-system", "-f", "-", manifest={"apiVersion": "v1", "kind": "ConfigMap", **kernels}
    )
    apply_policy(lab, HANGING, upgradePolicy={"autoUpgrade": True})
    lab.eventually(
        lambda: any(name.startswith("tessera_driver_rollout_stopped") and value for name, value in scrape(lab).items())
    )
    course.expect("TesseraDriverRolloutStopped", "TesseraNextKernelWithoutDriver")


def apply_policy(lab: RunningLab, version: str, **driver: Any) -> None:
    spec = {"driver": {**POLICY["spec"]["driver"], "version": version, **driver}}
    lab.apply({**POLICY, "spec": spec})


def driver_phases(lab: RunningLab) -> set[str]:
    return {each["phase"] for each in json.loads(lab.tessera("driver", "status", "-o", "json"))}


#: Each course of alerts and the lab that it runs on. Those that take half a minute or more run in `make soak` only.
COURSES: Mapping[Callable[[Course], None], Sequence[str]] = {
    on_bad_cards: ("--nodes", "1xH100-80GB"),
    on_silent_processes: ("--nodes", "1xT4"),
    on_one_error: ("--nodes", "4xT4,4xT4"),
    on_slices: ("--nodes", "2xA100-40GB"),
    on_idle_and_shared_cards: ("--nodes", "2xT4"),
    on_new_nodes: ("--nodes", "0", "--group", "gpu=1xT4:0-3", "--drivers", "--idle-time", "300"),
    on_drivers: ("--nodes", "2*T4", "--drivers"),
}
SHORT = (on_bad_cards, on_silent_processes)
#: Alerts that a scenario of each course fires; together these are all alerts.
FIRED: Mapping[Callable[[Course], None], set[str]] = {
    on_bad_cards: {
        "TesseraGpuThrottled",
        "TesseraGpuHot",
        "TesseraGpuUnhealthy",
        "TesseraCardNeedsReboot",
        "TesseraConditionFalse",
    },
    on_silent_processes: {"TesseraAgentSilent", "TesseraNoLeader"},
    on_one_error: {"TesseraHealthBreakerOpen"},
    on_slices: {
        "TesseraGpuMemoryNearlyFull",
        "TesseraContainersWithoutSlice",
        "TesseraFragmented",
        "TesseraPodStarving",
    },
    on_idle_and_shared_cards: {"TesseraGpuIdleButHeld", "TesseraPodMemoryNearLimit"},
    on_new_nodes: {"TesseraNodesOverdue", "TesseraProvisioningLoop"},
    on_drivers: {"TesseraDriverRolloutStopped", "TesseraNextKernelWithoutDriver"},
}


def test_every_alert_has_a_course_that_fires_it() -> None:
    """The scenario busy-and-healthy, on_slices, fires none."""
    assert set().union(*FIRED.values()) == set(ALL)


@pytest.mark.parametrize(
    "story",
    [pytest.param(each, marks=[] if each in SHORT else pytest.mark.soak, id=each.__name__) for each in COURSES],
)
def test_alerts_fire_on_labs_for_their_problem_only(promtool: Promtool, story: Callable[[Course], None]) -> None:
    with running_lab(*COURSES[story]) as lab:
        course = Course(lab)
        story(course)
    promtool.test_rules(*course.expected)
    assert course.fired == FIRED[story]
