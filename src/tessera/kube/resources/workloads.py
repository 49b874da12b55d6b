"""Workloads: the fields that show the pods of a workload and their readiness."""

from tessera.kube.resources.meta import LabelSelector, ObjectMeta, Wire
from tessera.kube.resources.pods import Condition, PodSpec


class ScaleSpec(Wire, frozen=True, kw_only=True):
    """The desired number of pods."""

    replicas: int = 0


class ScaleStatus(Wire, frozen=True, kw_only=True):
    """The present number of pods, and their selector as a text."""

    replicas: int = 0
    selector: str = ""


class Scale(Wire, frozen=True, kw_only=True):
    """autoscaling/v1 Scale: the ``scale`` subresource."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()


class PodTemplateSpec(Wire, frozen=True, kw_only=True):
    """The pods that a workload makes."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class RollingUpdate(Wire, frozen=True, kw_only=True):
    """How many pods more, and how many less, an update may have: a number, or ``25%`` of the desired ones."""

    max_unavailable: int | str = "25%"
    max_surge: int | str = "25%"


class DeploymentStrategy(Wire, frozen=True, kw_only=True):
    """How a Deployment replaces its pods: ``RollingUpdate`` or ``Recreate``."""

    type: str = ""
    rolling_update: RollingUpdate | None = None


class WorkloadSpec(Wire, frozen=True, kw_only=True):
    """Common part of Deployment and ReplicaSet; only a Deployment has a strategy."""

    replicas: int | None = None
    strategy: DeploymentStrategy = DeploymentStrategy()
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    min_ready_seconds: int = 0
    progress_deadline_seconds: int = 600


class WorkloadStatus(Wire, frozen=True, kw_only=True):
    """Common part of Deployment and ReplicaSet."""

    replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class Deployment(Wire, frozen=True, kw_only=True):
    """A Deployment, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def keeps_old_pods(self) -> bool:
        """True if a rolling update ends no old pod before a new one is available.

        ``maxUnavailable`` is rounded down, and counts as 1 where ``maxSurge`` is 0 too
        (``pkg/controller/deployment/util``, ``ResolveFenceposts``).
        """
        strategy, replicas = self.spec.strategy, self.spec.replicas
        if strategy.type not in {"", "RollingUpdate"}:
            return False
        count, rolling = 1 if replicas is None else replicas, strategy.rolling_update or RollingUpdate()
        unavailable, surge = (_share(each, count) for each in (rolling.max_unavailable, rolling.max_surge))
        return unavailable < 1 and surge > 0


def _share(value: int | str, count: int) -> float:
    text = str(value).strip()
    number = text.removesuffix("%")
    if not number.isdecimal():
        return 0.0
    return int(number) * count / 100 if number != text else float(number)


class ReplicaSet(Wire, frozen=True, kw_only=True):
    """A ReplicaSet, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class DaemonSetStatus(Wire, frozen=True, kw_only=True):
    """The number of nodes that should run the pod."""

    desired_number_scheduled: int = 0


class DaemonSet(Wire, frozen=True, kw_only=True):
    """A DaemonSet, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class JobSpec(Wire, frozen=True, kw_only=True):
    """The number of pods that must succeed, and the seconds from the Job's start in which they must."""

    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    suspend: bool = False
    template: PodTemplateSpec = PodTemplateSpec()


class CronJobSpec(Wire, frozen=True, kw_only=True):
    """Whether a CronJob makes no Jobs now."""

    suspend: bool = False


class CronJob(Wire, frozen=True, kw_only=True):
    """A CronJob, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CronJobSpec = CronJobSpec()


class JobStatus(Wire, frozen=True, kw_only=True):
    """The number of pods that succeeded, and the Job's start, which a suspended Job does not have."""

    start_time: str | None = None
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[Condition, ...] = ()


class Job(Wire, frozen=True, kw_only=True):
    """A Job, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()
