"""Validation of workloads and of their updates; defaults of CronJobs. Pure; ``pkg/apis/{apps,batch}/validation``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver import field_errors
from tessera_lab.apiserver.field_errors import forbidden_cause, invalid_cause, required_cause, unsupported_cause
from tessera_lab.apiserver.interfaces import Obj, StatusCause
from tessera_lab.apiserver.kinds.cron_schedule import find_zone, parse_schedule
from tessera_lab.apiserver.kinds.defaults import default_template
from tessera_lab.apiserver.pods.binding_and_eviction import label_selector_matches
from tessera_lab.apiserver.pods.defaults import fill_in
from tessera_lab.apiserver.pods.rules import validate_pod_spec

Read = Mapping[str, Any]

_STATEFUL = frozenset(
    {
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    }
)
_STATEFUL_RULE = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)
_POLICIES = ("Allow", "Forbid", "Replace")
#: Names of its Jobs have eleven characters more, and are labels of 63 at most.
_LONGEST_NAME = 52
_COUNTS = ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit")


def validate_workload(obj: Read) -> Sequence[StatusCause]:
    """Returns the errors of a Deployment, ReplicaSet, StatefulSet or DaemonSet."""
    return list(_workload(obj.get("spec") or {}))


def _workload(spec: Read) -> Iterator[StatusCause]:
    selector = spec.get("selector") or {}
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield invalid_cause("spec.selector", selector, "empty selector is invalid for deployment")
    elif not label_selector_matches(selector, labels):
        yield invalid_cause("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
    yield from _not_negative(spec, "replicas", "minReadySeconds", "revisionHistoryLimit")
    policy = (template.get("spec") or {}).get("restartPolicy", "Always")
    if policy != "Always":
        yield field_errors.unsupported_cause("spec.template.spec.restartPolicy", policy, ["Always"])
    yield from validate_pod_spec(_with_claims(template.get("spec") or {}, spec), "spec.template.spec")


def _with_claims(pod: Read, spec: Read) -> Read:
    """Returns a template's pod with the volumes that a StatefulSet adds for its claim templates."""
    claims = [(each.get("metadata") or {}).get("name") for each in spec.get("volumeClaimTemplates") or ()]
    if not claims:
        return pod
    own = [each for each in pod.get("volumes") or () if each.get("name") not in claims]
    return {**pod, "volumes": [*own, *({"name": name} for name in claims)]}


def _not_negative(spec: Read, *names: str) -> Iterator[StatusCause]:
    for name in names:
        value = spec.get(name)
        if isinstance(value, int) and value < 0:
            yield invalid_cause(f"spec.{name}", value, "must be greater than or equal to 0")


def validate_selector_update(obj: Read, old: Read) -> Sequence[StatusCause]:
    """Refuses a change of a workload's selector."""
    new, was = obj["spec"].get("selector"), old["spec"].get("selector")
    return () if new == was else [invalid_cause("spec.selector", new, "field is immutable")]


def validate_stateful_set_update(obj: Read, old: Read) -> Sequence[StatusCause]:
    """Refuses changes of a StatefulSet's immutable fields."""
    new = {key: value for key, value in obj["spec"].items() if key not in _STATEFUL}
    was = {key: value for key, value in old["spec"].items() if key not in _STATEFUL}
    return () if new == was else [forbidden_cause("spec", _STATEFUL_RULE)]


def validate_job(obj: Read) -> Sequence[StatusCause]:
    """Returns the errors of a Job."""
    spec = obj.get("spec") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    found = list(_not_negative(spec, "parallelism", "completions", "backoffLimit", "activeDeadlineSeconds"))
    if template.get("restartPolicy") not in {"OnFailure", "Never"}:
        field = "spec.template.spec.restartPolicy"
        if template.get("restartPolicy") == "Always":
            found.append(field_errors.unsupported_cause(field, "Always", ["OnFailure", "Never"]))
        else:
            found.append(field_errors.required_cause(field, 'valid values: "OnFailure", "Never"'))
    return [*found, *validate_pod_spec(template, "spec.template.spec")]


def validate_job_update(obj: Read, old: Read) -> Sequence[StatusCause]:
    """Refuses changes of a job's template and selector, and of its completions unless the job is indexed.

    Where its pods go may change while it is suspended and has not started (Kubernetes 1.27, KEP-2926).
    """
    new, was = obj["spec"], old["spec"]
    if was.get("suspend") and not (old.get("status") or {}).get("startTime"):
        new, was = ({**each, "template": _apart_from_directives(each.get("template") or {})} for each in (new, was))
    changed = [key for key in ("selector", "template", "completionMode") if new.get(key) != was.get(key)]
    found = [invalid_cause(f"spec.{key}", new.get(key), "field is immutable") for key in changed]
    indexed = obj["spec"].get("completionMode") == "Indexed"
    if obj["spec"].get("completions") != old["spec"].get("completions") and not indexed:
        found.append(invalid_cause("spec.completions", obj["spec"].get("completions"), "field is immutable"))
    return found


def _apart_from_directives(template: Read) -> Read:
    """A template without its labels, annotations and directives of scheduling."""
    spec = _without(template.get("spec") or {}, "nodeSelector", "tolerations", "schedulingGates")
    affinity = _without(spec.get("affinity") or {}, "nodeAffinity")
    meta = _without(template.get("metadata") or {}, "labels", "annotations", "creationTimestamp")
    return {**template, "metadata": meta, "spec": {**spec, "affinity": affinity}}


def _without(item: Read, *keys: str) -> Read:
    return {key: value for key, value in item.items() if key not in keys}


def validate_priority_class_update(obj: Read, old: Read) -> Sequence[StatusCause]:
    """Refuses a change of a priority class's value."""
    found = (
        [] if obj.get("value") == old.get("value") else [forbidden_cause("value", "may not be changed in an update.")]
    )
    if obj.get("preemptionPolicy") != old.get("preemptionPolicy"):
        found.append(forbidden_cause("preemptionPolicy", "field is immutable"))
    return found


def validate_role_binding_update(obj: Read, old: Read) -> Sequence[StatusCause]:
    """Refuses a change of a binding's role."""
    same = obj.get("roleRef") == old.get("roleRef")
    return () if same else [invalid_cause("roleRef", obj.get("roleRef"), "cannot change roleRef")]


def default_cron_job(item: Obj) -> None:
    """Sets the defaults; its Jobs get theirs when they are made."""
    spec = item.setdefault("spec", {})
    fill_in(spec, concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    default_template(spec.setdefault("jobTemplate", {}).setdefault("spec", {}))


def validate_cron_job(item: Mapping[str, Any]) -> Sequence[StatusCause]:
    """Returns the errors of a CronJob."""
    name, spec = item["metadata"].get("name", ""), item.get("spec") or {}
    found = list(_spec(spec))
    if len(name) > _LONGEST_NAME:
        found.append(invalid_cause("metadata.name", name, f"must be no more than {_LONGEST_NAME} characters"))
    causes = validate_job({"spec": (spec.get("jobTemplate") or {}).get("spec") or {}})
    return [*found, *(msgspec.structs.replace(each, field=f"spec.jobTemplate.{each.field}") for each in causes)]


def _spec(spec: Mapping[str, Any]) -> Iterator[StatusCause]:
    schedule, zone = spec.get("schedule", ""), spec.get("timeZone")
    if not schedule:
        yield required_cause("spec.schedule")
    elif "TZ" in schedule:
        text = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        yield invalid_cause("spec.schedule", schedule, text)
    else:
        try:
            parse_schedule(schedule)
        except ValueError as error:
            yield invalid_cause("spec.schedule", schedule, str(error))
    if zone is not None:
        try:
            find_zone(zone)
        except ValueError as error:
            yield invalid_cause("spec.timeZone", zone, str(error))
    if spec.get("concurrencyPolicy") not in _POLICIES:
        yield unsupported_cause("spec.concurrencyPolicy", spec.get("concurrencyPolicy"), _POLICIES)
    for name in _COUNTS:
        if (spec.get(name) or 0) < 0:
            yield invalid_cause(f"spec.{name}", spec[name], "must be greater than or equal to 0")
