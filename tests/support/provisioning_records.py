"""Records of nodes and pods, for tests of what is made of them."""

from tessera.provisioning.milestones import ORDER, Milestone, ProvisioningRecord, WorkloadRecord, WorkloadStep

M = Milestone


def record(number: int, *phases: float, strategy: str = "built", **more: object) -> ProvisioningRecord:
    """A node whose phases took so long, from its request on."""
    at, moment = {ORDER[0]: 1000.0 * number}, 1000.0 * number
    for milestone, took in zip(ORDER[1:], phases, strict=False):
        moment += took
        at[milestone] = moment
    return ProvisioningRecord(node=f"n{number}", uid=f"u{number}", at=at, strategy=strategy, **more)  # type: ignore[arg-type]


BUILT = [record(n, 60, 40, 20, 0, 30, 200 + n, 5, 5, 5, 20) for n in range(5)]


FAST = [record(10 + n, 60, 40, 20, 0, 30, 40, 5, 5, 5, 20, strategy="precompiled") for n in range(3)]


LATE = ProvisioningRecord(
    node="n",
    uid="n",
    at={M.LABELLED: 700.0, M.PULLED: 750.0, M.DRIVER: 780.0, M.ALLOCATABLE: 795.0},
    asked=700.0,
    strategy="built",
)


WORKLOADS = [
    WorkloadRecord(namespace="a", name="p", uid="p", node="n", fresh=True, simulated=True, at=at)
    for at in (
        {
            WorkloadStep.CREATED: 0,
            WorkloadStep.SCALED_UP: 2,
            WorkloadStep.BOUND: 200,
            WorkloadStep.PULLED: 210,
            WorkloadStep.STARTED: 212,
        },
    )
] + [
    WorkloadRecord(
        namespace="a",
        name="q",
        uid="q",
        node="n",
        at={WorkloadStep.CREATED: 0, WorkloadStep.BOUND: 1, WorkloadStep.STARTED: 6},
    )
]
