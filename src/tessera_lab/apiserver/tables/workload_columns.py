"""Columns of apps, autoscaling, batch and policy kinds."""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.clock import parse_rfc3339
from tessera_lab.apiserver.tables.core_columns import NONE, age_of, format_duration, labels, name_of

Part = Mapping[str, Any]
WIDE = ("+Containers", "+Images", "+Selector")


def _pods(obj: Part) -> tuple[str, str]:
    """Names and images of the template's containers."""
    spec = ((obj.get("spec") or {}).get("template") or {}).get("spec") or {}
    found = spec.get("containers") or ()
    return ",".join(each.get("name", "") for each in found), ",".join(each.get("image", "") for each in found)


def selector(found: Part | None) -> str:
    """Prints a LabelSelector as kubectl does: ``a=b,c in (d,e)``."""
    if found is None:
        return NONE
    terms = [f"{key}={value}" for key, value in (found.get("matchLabels") or {}).items()]
    for each in found.get("matchExpressions") or ():
        key, values = each.get("key"), ",".join(sorted(each.get("values") or ()))
        forms = {"Exists": f"{key}", "DoesNotExist": f"!{key}", "In": f"{key} in ({values})"}
        terms.append(forms.get(each.get("operator", ""), f"{key} notin ({values})"))
    return ",".join(sorted(terms)) or NONE


def _numbers(obj: Part, *names: str) -> list[int]:
    status = obj.get("status") or {}
    return [status.get(name) or 0 for name in names]


def _desired_count(obj: Part) -> int:
    desired = (obj.get("spec") or {}).get("replicas")
    return 1 if desired is None else int(desired)


def _deployment(obj: Part, now: float) -> Sequence[Any]:
    ready, updated, available = _numbers(obj, "readyReplicas", "updatedReplicas", "availableReplicas")
    wide = (*_pods(obj), selector((obj.get("spec") or {}).get("selector")))
    return [name_of(obj), f"{ready}/{_desired_count(obj)}", updated, available, age_of(obj, now), *wide]


def _replica_set(obj: Part, now: float) -> Sequence[Any]:
    wide = (*_pods(obj), selector((obj.get("spec") or {}).get("selector")))
    return [name_of(obj), _desired_count(obj), *_numbers(obj, "replicas", "readyReplicas"), age_of(obj, now), *wide]


def _stateful_set(obj: Part, now: float) -> Sequence[Any]:
    (ready,) = _numbers(obj, "readyReplicas")
    return [name_of(obj), f"{ready}/{_desired_count(obj)}", age_of(obj, now), *_pods(obj)]


def _daemon_set(obj: Part, now: float) -> Sequence[Any]:
    spec = obj.get("spec") or {}
    counts = _numbers(
        obj,
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    where = labels(((spec.get("template") or {}).get("spec") or {}).get("nodeSelector"))
    return [name_of(obj), *counts, where, age_of(obj, now), *_pods(obj), selector(spec.get("selector"))]


def _job(obj: Part, now: float) -> Sequence[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    done = status.get("succeeded") or 0
    completions, parallel = spec.get("completions"), spec.get("parallelism") or 0
    if completions is not None:
        shown = f"{done}/{completions}"
    else:
        shown = f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"
    wide = (*_pods(obj), selector(spec.get("selector")))
    return [name_of(obj), _job_state(obj), shown, _job_duration(status, now), age_of(obj, now), *wide]


def _cron_job(obj: Part, now: float) -> Sequence[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    last, job = status.get("lastScheduleTime"), (spec.get("jobTemplate") or {}).get("spec") or {}
    return [
        name_of(obj),
        spec.get("schedule", ""),
        spec.get("timeZone") or NONE,
        str(bool(spec.get("suspend"))),
        len(status.get("active") or ()),
        format_duration(now - parse_rfc3339(last)) if last else NONE,
        age_of(obj, now),
        *_pods({"spec": job}),
        selector(job.get("selector")),
    ]


def _job_state(obj: Part) -> str:
    true = {
        each.get("type") for each in (obj.get("status") or {}).get("conditions") or () if each.get("status") == "True"
    }
    for condition, shown in (("Complete", "Complete"), ("Failed", "Failed")):
        if condition in true:
            return shown
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for condition, shown in (
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ):
        if condition in true:
            return shown
    return "Running"


def _job_duration(status: Part, now: float) -> str:
    start, end = status.get("startTime"), status.get("completionTime")
    if not start:
        return ""
    return format_duration((parse_rfc3339(end) if end else now) - parse_rfc3339(start))


def _budget(obj: Part, now: float) -> Sequence[Any]:
    spec = obj.get("spec") or {}
    least, most = (str(spec.get(name, "N/A")) for name in ("minAvailable", "maxUnavailable"))
    return [name_of(obj), least, most, *_numbers(obj, "disruptionsAllowed"), age_of(obj, now)]


def _revision(obj: Part, now: float) -> Sequence[Any]:
    owner = next((each for each in obj["metadata"].get("ownerReferences") or () if each.get("controller")), None)
    shown = NONE
    if owner:
        group, slash, _ = owner.get("apiVersion", "").rpartition("/")
        kind = owner.get("kind", "").lower()
        shown = f"{kind}.{group}/{owner.get('name')}" if slash else f"{kind}/{owner.get('name')}"
    return [name_of(obj), shown, obj.get("revision", 0), age_of(obj, now)]


def _autoscaler(obj: Part, now: float) -> Sequence[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    reference = spec.get("scaleTargetRef") or {}
    least = spec.get("minReplicas")
    return [
        name_of(obj),
        f"{reference.get('kind')}/{reference.get('name')}",
        _metrics(spec.get("metrics") or (), status.get("currentMetrics") or ()),
        "<unset>" if least is None else str(least),
        spec.get("maxReplicas", 0),
        status.get("currentReplicas") or 0,
        age_of(obj, now),
    ]


def _metrics(wanted: Sequence[Part], current: Sequence[Part]) -> str:
    """Each metric as current/target, at most two (``formatHPAMetrics``)."""
    shown = []
    for index, metric in enumerate(wanted[:2]):
        field = metric["type"][0].lower() + metric["type"][1:]
        now = (current[index].get(field) or {}).get("current") or {} if index < len(current) else {}
        shown.append(_use(metric[field], now))
    rest = len(wanted) - len(shown)
    return (", ".join(shown) + (f" + {rest} more..." if rest else "")) or "<none>"


def _use(source: Part, now: Part) -> str:
    target = source.get("target") or {}
    name = f"{source['name']}: " if "name" in source else ""
    if "averageUtilization" in target:
        used = now.get("averageUtilization")
        return f"{name}{'<unknown>' if used is None else f'{used}%'}/{target['averageUtilization']}%"
    key, suffix = ("averageValue", " (avg)") if "averageValue" in target else ("value", "")
    return f"{name}{now.get(key, '<unknown>')}/{target.get(key)}{suffix}"


COLUMNS = {
    ("apps", "Deployment"): (
        ("Name", "Ready", "Up-to-date:integer", "Available:integer", "Age", *WIDE),
        _deployment,
    ),
    ("apps", "ReplicaSet"): (
        ("Name", "Desired:integer", "Current:integer", "Ready:integer", "Age", *WIDE),
        _replica_set,
    ),
    ("apps", "StatefulSet"): (("Name", "Ready", "Age", "+Containers", "+Images"), _stateful_set),
    ("apps", "DaemonSet"): (
        (
            "Name",
            "Desired:integer",
            "Current:integer",
            "Ready:integer",
            "Up-to-date:integer",
            "Available:integer",
            "Node Selector",
            "Age",
            *WIDE,
        ),
        _daemon_set,
    ),
    ("apps", "ControllerRevision"): (("Name", "Controller", "Revision:integer", "Age"), _revision),
    ("batch", "Job"): (("Name", "Status", "Completions", "Duration", "Age", *WIDE), _job),
    ("batch", "CronJob"): (
        ("Name", "Schedule", "Timezone", "Suspend", "Active:integer", "Last Schedule", "Age", *WIDE),
        _cron_job,
    ),
    ("autoscaling", "HorizontalPodAutoscaler"): (
        ("Name", "Reference", "Targets", "MinPods", "MaxPods:integer", "Replicas:integer", "Age"),
        _autoscaler,
    ),
    ("policy", "PodDisruptionBudget"): (
        ("Name", "Min Available", "Max Unavailable", "Allowed Disruptions:integer", "Age"),
        _budget,
    ),
}
