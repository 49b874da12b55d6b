"""Notices on settings of NVIDIA's gpu-operator, besides drivers, that Tessera does not carry out.

The reasons are data (:mod:`tessera.gpu_operator.fields.without_effect`). A component that is switched off is off here
too, and not reported; nor is a component of virtual machines where they are off.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tessera.api.problems import Notice
from tessera.gpu_operator.fields.without_effect import (
    COMPONENTS,
    GROUPS,
    MIG_ENV,
    OF_INSTALL,
    OF_SANDBOXES,
    PLUGIN_ENV,
    SINGLE,
    USUAL_PATHS,
)

#: Environment variables that Tessera follows.
PLUGIN_FOLLOWED = (
    "DEVICE_LIST_STRATEGY",
    "DEVICE_ID_STRATEGY",
    "MIG_STRATEGY",
    "MPS_ROOT",
    "PASS_DEVICE_SPECS",
    "DP_DISABLE_HEALTHCHECKS",
    "DP_ENABLE_HEALTHCHECKS",
)
MANAGER_FOLLOWED = ("WITH_REBOOT",)
#: Keys of a component that ask nothing of agents: its switch, and settings of the container toolkit.
_ELSEWHERE = ("enabled", "nriPluginEnabled")


def list_unsupported(fields: Mapping[str, Any], path: str) -> Iterator[Notice]:
    """Yields notices on settings without effect in Helm values, or in a ClusterPolicy that is taken over.

    Args:
        fields: all components, already checked.
        path: their path: empty, or ``spec``.
    """
    yield from _components(fields, path)
    if _off(fields, "cdi"):
        yield _single(path, "cdi.enabled")
    for component in ("devicePlugin", "gfd", "migManager"):
        yield from _groups(fields.get(component, {}), _at(path, component))
    if _off(fields, "gfd"):
        yield _single(path, "gfd.enabled")
    if any(_env(fields, "gfd")):
        yield _single(path, "gfd.env")
    yield from _variables(fields, path, "devicePlugin", PLUGIN_ENV, PLUGIN_FOLLOWED)
    yield from _variables(fields, path, "migManager", MIG_ENV, MANAGER_FOLLOWED)


def list_ineffective(fields: Mapping[str, Any], path: str) -> list[Notice]:
    """Returns notices on settings without effect in a cluster's ClusterPolicy, which the agents do not read."""
    found = list(_components(fields, path))
    for component, reason in OF_INSTALL.items():
        value = fields.get(component, {})
        if value.get("enabled") is not False and any(is_set(value[key]) for key in value if key not in _ELSEWHERE):
            found.append(Notice(_at(path, component), f"no effect by itself: {reason}"))
    return found


def is_set(value: Any) -> bool:
    """True if a value asks for anything; empty and false values, at all levels, do not."""
    if isinstance(value, Mapping):
        return any(map(is_set, value.values()))
    return value not in (None, False, "", 0) and value != []


def is_switched_off(fields: Mapping[str, Any], component: str) -> bool:
    """True if the component's switch, or the switch of all virtual machines, turns it off."""
    if component in OF_SANDBOXES and fields.get("sandboxWorkloads", {}).get("enabled") is not True:
        return True
    value = fields.get(component)
    return isinstance(value, Mapping) and (value.get("enabled") is False or value.get("deployCR") is False)


def _components(fields: Mapping[str, Any], path: str) -> Iterator[Notice]:
    for component, value in fields.items():
        if component in COMPONENTS and is_set(value) and not is_switched_off(fields, component):
            yield Notice(_at(path, component), f"no effect: {COMPONENTS[component]}")
    sandboxes = fields.get("sandboxWorkloads", {})
    if sandboxes.get("enabled") is True and str(sandboxes.get("defaultWorkload")).startswith("vm-"):
        yield _single(path, "sandboxWorkloads.defaultWorkload")
    paths = fields.get("hostPaths", {})
    if any(str(paths.get(key, "")) not in {"", usual} for key, usual in USUAL_PATHS.items()):
        yield _single(path, "hostPaths")


def _groups(fields: Mapping[str, Any], path: str) -> Iterator[Notice]:
    for keys, reason in GROUPS:
        present = [key for key in keys if is_set(fields.get(key))]
        if present:
            yield Notice(path, f"no effect: {', '.join(present)}; {reason}")


def _variables(
    fields: Mapping[str, Any], path: str, component: str, known: Mapping[str, str], followed: tuple[str, ...]
) -> Iterator[Notice]:
    for name in _env(fields, component):
        if name not in followed:
            reason = known.get(name, SINGLE["unknown variable"])
            yield Notice(_at(path, f"{component}.env.{name}"), f"no effect: {reason}")


def _single(path: str, setting: str) -> Notice:
    return Notice(_at(path, setting), f"no effect: {SINGLE[setting]}")


def _env(fields: Mapping[str, Any], component: str) -> Mapping[str, str]:
    value = fields.get(component, {}).get("env")
    return value if isinstance(value, Mapping) else {}


def _off(fields: Mapping[str, Any], component: str) -> bool:
    return bool(fields.get(component, {}).get("enabled") is False)


def _at(path: str, below: str) -> str:
    return f"{path}.{below}" if path else below
