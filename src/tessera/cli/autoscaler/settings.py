"""Settings of a cluster autoscaler, out of OpenShift's object or out of the flags of its Deployment. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tessera.cli.base.option_types import parse_duration
from tessera.kube.resources.meta import Resource
from tessera.provisioning.advise.timers import DEFAULTS, Timers
from tessera.provisioning.advise.warm import CUTOFF

CLUSTER_AUTOSCALERS = Resource(
    "autoscaling.openshift.io", "v1", "clusterautoscalers", "ClusterAutoscaler", False, dict[str, Any]
).untyped()

_FLAGS = {
    "max-node-provision-time": "max_node_provision",
    "max-node-startup-time": "max_node_startup",
    "scale-down-unneeded-time": "unneeded",
    "scale-down-delay-after-add": "delay_after_add",
}
_GPU_TOTAL, _CUTOFF, _SCALE_DOWN = "gpu-total", "expendable-pods-priority-cutoff", "scale-down-enabled"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all node groups.

    Attributes:
        timers: in force; None in each where no autoscaler is seen.
        gpu_types: types of cards that it has limits for.
        cutoff: pods of a lower priority cause no scale-up.
        scale_down: whether it takes nodes away; None if nobody says so.
    """

    timers: Timers = Timers()
    gpu_types: tuple[str, ...] = ()
    cutoff: int = CUTOFF
    scale_down: bool | None = None


def from_openshift(scaler: Mapping[str, Any]) -> Settings:
    """Settings of a ClusterAutoscaler; what it does not say is the autoscaler's default."""
    spec = _object(scaler.get("spec"))
    down = _object(spec.get("scaleDown"))
    gpus = _object(spec.get("resourceLimits")).get("gpus")
    threshold, enabled = spec.get("podPriorityThreshold"), down.get("enabled")
    return Settings(
        timers=over(
            DEFAULTS,
            max_node_provision=spec.get("maxNodeProvisionTime"),
            unneeded=down.get("unneededTime"),
            delay_after_add=down.get("delayAfterAdd"),
        ),
        gpu_types=tuple(str(_object(each).get("type", "")) for each in gpus) if isinstance(gpus, list) else (),
        cutoff=threshold if isinstance(threshold, int) else CUTOFF,
        scale_down=enabled if isinstance(enabled, bool) else None,
    )


def from_deployment(deployment: Mapping[str, Any]) -> Settings:
    """Settings by the flags of a Deployment's containers."""
    timers: dict[str, str] = {}
    types: list[str] = []
    cutoff, scale_down = CUTOFF, None
    for name, value in _flags(deployment):
        if name in _FLAGS:
            timers[_FLAGS[name]] = value
        elif name == _GPU_TOTAL:
            types.append(value.rsplit(":", 2)[0])
        elif name == _CUTOFF and value.lstrip("-").isdecimal():
            cutoff = int(value)
        elif name == _SCALE_DOWN:
            scale_down = value.lower() != "false"
    return Settings(timers=over(DEFAULTS, **timers), gpu_types=tuple(types), cutoff=cutoff, scale_down=scale_down)


def over(timers: Timers, **texts: object) -> Timers:
    """Timers with those replaced that are written in an object; what cannot be read is left as it is."""
    found = {}
    for name, text in texts.items():
        try:
            if text:
                found[name] = parse_duration(str(text))
        except ValueError:
            continue  # the autoscaler refuses it as well
    return msgspec.structs.replace(timers, **found)


def _flags(deployment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    spec = _object(_object(_object(deployment.get("spec")).get("template")).get("spec"))
    for container in spec.get("containers") or ():
        words = [str(each) for each in (*(container.get("command") or ()), *(container.get("args") or ()))]
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, equals, value = word.lstrip("-").partition("=")
            if word.startswith("-"):
                yield name, value if equals or following.startswith("--") else following


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
