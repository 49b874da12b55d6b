"""Events of Red Hat's nodes are recorded as 369/217/207 s, and every second belongs to a phase.

A whole way from a machine that is asked for to a workload that runs, object by object. What a record may not do is to
put seconds aside: where every milestone was seen, nothing is unattributed.
"""

import msgspec
import pytest
from tests.provisioning.conftest import T0, condition, driver, make_pod, offering, role_pod
from tests.provisioning.tracked_cluster import TrackedCluster

from tessera.api.nodes.node_marks import DRIVER_APP, TOOLKIT_APP, VALIDATION_APP
from tessera.clock import rfc3339
from tessera.kube.resources import CAPI_MACHINES, Machine
from tessera.provisioning.milestones import Milestone, Span, node_phases, span_seconds
from tessera.provisioning.timestamps import read_machine

M = Milestone
GPU = {"nvidia.com/gpu": "1"}
READY = 70
#: Seconds from Ready: the driver's pod runs, the driver serves, the toolkit does, both are validated, cards are given
#: out, the workload runs. The last ones are Red Hat's.
ARTICLE = {
    "built": (41, 301, 330, 344, 355, 369),
    "precompiled, public registry": (52, 152, 180, 193, 204, 217),
    "precompiled, cluster's registry": (42, 142, 170, 183, 194, 207),
}


class ReplayedNode(TrackedCluster):
    """A tracker that sees the start of one node."""

    def play(self, moments: tuple[int, int, int, int, int, int]) -> None:
        """Shows the tracker every object of the start; moments are seconds from Ready."""
        pulled, served, toolkit, validated, given, runs = moments
        self.tracker.observe_machine(read_machine(_machine(), CAPI_MACHINES))
        self.pod(make_pod("job", node="", created=T0 - 200, limits=GPU), -200)
        self.node(0.3)
        self.node(0.5, annotations=driver())
        ready = condition("Ready", at=T0 + READY)
        self.node(READY, annotations=driver(), conditions=(ready,))
        began = {"started": T0 + READY + pulled}
        self.pod(role_pod(DRIVER_APP, **began), READY + pulled)
        self.pod(role_pod(DRIVER_APP, **began, ready=T0 + READY + served), READY + served)
        self.pod(role_pod(TOOLKIT_APP, ready=T0 + READY + toolkit), READY + toolkit)
        self.pod(role_pod(VALIDATION_APP, ended=T0 + READY + validated), READY + validated)
        told = (ready, condition("GpuSharingApplied", at=T0 + READY + validated))
        self.node(READY + validated, annotations=driver() | offering(), conditions=told)
        self.node(READY + given, annotations=driver() | offering(), conditions=told, allocatable=GPU)
        self.pod(make_pod("job", created=T0 - 200, limits=GPU, started=T0 + READY + runs), READY + runs)


def _machine() -> Machine:
    there = {"type": "InfrastructureReady", "status": "True", "lastTransitionTime": rfc3339(T0 - 60)}
    return msgspec.convert(
        {
            "metadata": {"name": "m", "namespace": "c", "uid": "m", "creationTimestamp": rfc3339(T0 - 150)},
            "status": {"nodeRef": {"name": "gpu-1"}, "conditions": [there]},
        },
        Machine,
    )


@pytest.mark.parametrize("scenario", ARTICLE)
def test_the_way_of_the_articles_nodes_is_recorded_phase_by_phase(scenario: str) -> None:
    replay, moments = ReplayedNode(), ARTICLE[scenario]
    replay.play(moments)
    record = replay.tracker.records["gpu-1"]
    assert span_seconds(record, Span.READY_TO_WORKLOAD) == pytest.approx(moments[-1], abs=1)
    found = node_phases(record)
    lasted = [later - before for before, later in zip((0, *moments), moments, strict=False)]
    assert {each: found.seconds[each] for each in M if each is not M.REQUESTED} == {
        M.VM: pytest.approx(90, abs=1), M.REGISTERED: pytest.approx(60, abs=1), M.READY: pytest.approx(70, abs=1),
        M.LABELLED: pytest.approx(0, abs=1),
        **{each: pytest.approx(took, abs=1) for each, took in zip(list(M)[5:], lasted, strict=True)},
    }  # fmt: skip
    assert found.unattributed == pytest.approx(0, abs=1)
    assert found.total == pytest.approx(150 + 70 + moments[-1], abs=1)
