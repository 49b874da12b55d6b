"""CronJobs: defaults and rules. Pure; ``pkg/apis/batch``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.field_errors import invalid_cause, required_cause, unsupported_cause
from tessera_lab.apiserver.interfaces import Obj, StatusCause
from tessera_lab.apiserver.kinds.cron_schedule import find_zone, parse_schedule
from tessera_lab.apiserver.kinds.defaults import default_template
from tessera_lab.apiserver.kinds.workload_rules import validate_job
from tessera_lab.apiserver.pods.defaults import fill_in

_POLICIES = ("Allow", "Forbid", "Replace")
#: Names of its Jobs have eleven characters more, and are labels of 63 at most.
_LONGEST_NAME = 52
_COUNTS = ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit")


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
