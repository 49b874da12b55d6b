"""The driver objects of an installation: those that NVIDIA's chart would render from values, or a ClusterPolicy.

There are such objects if:

- ``driver.enabled`` is not false, and the file names a driver: ``version``, ``repository``, ``image`` or
  ``usePrecompiled``. Values without a word about drivers leave the hosts' drivers alone, though the chart's default is
  to install one;
- or the user asks for drivers, whatever the file names. Without either, Tessera installs none.

The chart's defaults (:data:`~tessera.gpu_operator.driver_policy.CHART_VALUES`) fill in missing values. Components that
Tessera itself provides are rendered as switched off. So the object satisfies NVIDIA's CRD, and asks NVIDIA's operator
for nothing that Tessera does.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tessera.api.problems import FileRefused, Notice, Problem
from tessera.gpu_operator.driver_policy import CHART_VALUES, DRIVER_ROOT, DriverPolicy
from tessera.gpu_operator.field_reader import ReadPolicy
from tessera.gpu_operator.policy_objects import (
    DRIVER_API,
    DRIVER_KIND,
    POLICY_API,
    POLICY_KIND,
    asks_for_drivers,
    read_cluster_policy,
    read_nvidia_driver,
)
from tessera.gpu_operator.without_effect import SINGLE, WITHOUT_DRIVERS, is_set, is_switched_off

Manifest = dict[str, Any]

#: The name that NVIDIA's chart gives its ClusterPolicy, and its NVIDIADriver.
POLICY_NAME = "cluster-policy"
DRIVER_NAME = "default"
LABELS = {"app.kubernetes.io/part-of": "tessera"}

#: Components of a ClusterPolicy that NVIDIA's definition requires and Tessera replaces.
_OWN = ("dcgm", "dcgmExporter", "devicePlugin", "gfd", "nodeStatusExporter")
#: Fields of ``metadata`` that the server writes; the author writes the others.
_OF_AUTHOR = ("name", "labels", "annotations")
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class InstalledDrivers(msgspec.Struct, frozen=True, kw_only=True):
    """The driver objects of an installation.

    Attributes:
        objects: the objects to apply; none if the hosts keep their own drivers.
        policies: the meaning of the objects, in their order.
        notices: settings without effect, with their paths in the file.
    """

    objects: tuple[Manifest, ...] = ()
    policies: tuple[DriverPolicy, ...] = ()
    notices: tuple[Notice, ...] = ()


def drivers_of_values(values: Mapping[str, Any], wanted: bool | None = None) -> InstalledDrivers:
    """Reads the driver objects of the Helm chart's values.

    Args:
        values: the loaded values.
        wanted: True if the user asks for drivers; None leaves it to the file.

    Raises:
        FileRefused: the values have mistakes.
    """
    if wanted is None and not _deployed(values):
        wanted = False
    if not _is_wanted(values, "driver.enabled", wanted):
        return InstalledDrivers(notices=tuple(_without(values, wanted)))
    objects = tuple(_render(values))
    try:
        found = tuple(
            read_cluster_policy(each) if each["kind"] == POLICY_KIND else read_nvidia_driver(each) for each in objects
        )
    except FileRefused as refused:
        raise FileRefused([Problem(_in_values(each.path), each.text) for each in refused.problems]) from refused
    notices = tuple(Notice(_in_values(each.path), each.text) for read in found for each in read.notices)
    return InstalledDrivers(objects=objects, policies=tuple(each.policy for each in found), notices=notices)


def drivers_of_policy(obj: Mapping[str, Any], wanted: bool | None = None) -> InstalledDrivers:
    """Reads the driver objects of a ClusterPolicy in a file. The object to apply is the file's, without its status.

    Raises:
        FileRefused: the policy has mistakes.
    """
    spec = obj.get("spec")
    fields = spec if isinstance(spec, Mapping) else {}
    if not _is_wanted(fields, "spec.driver.enabled", wanted):
        notices = (Notice(f"spec.{each.path}", each.text) for each in _without(fields, wanted))
        return InstalledDrivers(notices=tuple(notices))
    found: ReadPolicy = read_cluster_policy(obj)
    about = ("metadata", "spec.driver", "spec.toolkit", "spec.daemonsets")
    notices_ = tuple(each for each in found.notices if each.path.startswith(about))
    return InstalledDrivers(objects=(_strip_server_fields(obj),), policies=(found.policy,), notices=notices_)


def _is_wanted(fields: Mapping[str, Any], path: str, wanted: bool | None) -> bool:
    driver = fields.get("driver")
    off = isinstance(driver, Mapping) and driver.get("enabled") is False
    if wanted and off:
        raise FileRefused([Problem(path, "is false, while --drivers asks for drivers; leave one of the two out")])
    return asks_for_drivers(fields) if wanted is None else wanted


def _deployed(values: Mapping[str, Any]) -> bool:
    """True if the chart would render a ClusterPolicy at all."""
    written = values.get("clusterPolicy")
    return not isinstance(written, Mapping) or written.get("deployCR") is not False


def _without(fields: Mapping[str, Any], wanted: bool | None) -> Iterator[Notice]:
    for part, reason in WITHOUT_DRIVERS.items():
        if is_set(fields.get(part)) and not is_switched_off(fields, part):
            more = f": {SINGLE['unnamed driver']}" if part == "driver" and wanted is None else ""
            yield Notice(part, f"no effect: {reason}{more}")
    paths = fields.get("hostPaths")
    root = paths.get("driverInstallDir") if isinstance(paths, Mapping) else None
    if root and root != DRIVER_ROOT:
        yield Notice("hostPaths.driverInstallDir", f"no effect: {WITHOUT_DRIVERS['driver']}")


def _in_values(path: str) -> str:
    """Returns the path in the values that becomes a path of the object."""
    return path.removeprefix("spec.").replace("upgradePolicy.podDeletion", "upgradePolicy.gpuPodDeletion")


def _strip_server_fields(obj: Mapping[str, Any]) -> Manifest:
    metadata = obj.get("metadata") or {}
    kept = {key: copy.deepcopy(metadata[key]) for key in _OF_AUTHOR if metadata.get(key)}
    kept.get("annotations", {}).pop(_APPLIED, None)
    kept["labels"] = {**kept.get("labels", {}), **LABELS}
    return {
        "apiVersion": POLICY_API,
        "kind": POLICY_KIND,
        "metadata": kept,
        "spec": copy.deepcopy(dict(obj.get("spec") or {})),
    }


# As the chart renders it (templates/clusterpolicy.yaml, templates/nvidiadriver.yaml of chart v26.7.0)


def _render(values: Mapping[str, Any]) -> Iterator[Manifest]:
    known = ("driver", "toolkit", "daemonsets", "hostPaths", "gds", "gdrcopy")
    written = {part: values[part] for part in known if isinstance(values.get(part), Mapping)}
    merged = merge_values(CHART_VALUES, written)
    driver = dict(merged["driver"])
    crd, upgrade = driver.pop("nvidiaDriverCRD", None) or {}, driver.pop("upgradePolicy", None) or {}
    by_objects = crd.get("enabled") is True
    rest = _fill_in(driver, written.get("driver", {}))
    upgrade = {("podDeletion" if key == "gpuPodDeletion" else key): value for key, value in upgrade.items()}
    own: Manifest = {"enabled": True, "useNvidiaDriverCRD": by_objects, "upgradePolicy": _fill_in(upgrade)}
    features = {part: _fill_in(merged[part]) for part in ("gds", "gdrcopy") if merged.get(part, {}).get("enabled")}
    spec = {
        "operator": {},
        "daemonsets": _fill_in(merged["daemonsets"]),
        "hostPaths": _fill_in(merged["hostPaths"]),
        "driver": own if by_objects else {**rest, **own},
        "toolkit": _fill_in(merged["toolkit"]),
        **_nri(values),
        **features,
        **{part: {"enabled": False} for part in _OWN},
    }
    yield _object(POLICY_API, POLICY_KIND, POLICY_NAME, spec)
    if by_objects and crd.get("deployDefaultCR") is not False:
        yield _object(
            DRIVER_API, DRIVER_KIND, DRIVER_NAME, _default_driver(rest, own["upgradePolicy"], crd, merged, features)
        )


def _nri(values: Mapping[str, Any]) -> Manifest:
    """Returns toolkit variables that ``cdi`` sets; agents take the rest of ``cdi`` as options."""
    cdi = values.get("cdi")
    asked = isinstance(cdi, Mapping) and cdi.get("nriPluginEnabled") is True
    return {"cdi": {"nriPluginEnabled": True}} if asked else {}


def _object(api_version: str, kind: str, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "labels": dict(LABELS)}, "spec": spec}


def _default_driver(
    rest: Manifest, upgrade: Manifest, crd: Mapping[str, Any], merged: Mapping[str, Any], features: Manifest
) -> Manifest:
    """Returns the NVIDIADriver for all nodes; its references to ConfigMaps have other keys than a ClusterPolicy's."""
    spec = {key: value for key, value in rest.items() if key != "enabled"}
    for their_key, our_key, key in (
        ("repoConfig", "repoConfig", "configMapName"),
        ("virtualTopology", "virtualTopologyConfig", "config"),
    ):
        if their_key in spec:
            spec[our_key] = {"name": spec.pop(their_key).get(key, "")}
    if "configMapName" in spec.get("licensingConfig", {}):
        licence = dict(spec["licensingConfig"])
        spec["licensingConfig"] = {"name": licence.pop("configMapName"), **licence}
    pods = {
        key: merged["daemonsets"][key]
        for key in ("labels", "annotations", "tolerations")
        if merged["daemonsets"].get(key)
    }
    kind = crd.get("driverType") or "gpu"
    return {"default": True, "driverType": kind, **spec, **pods, "upgradePolicy": upgrade, **features}


def merge_values(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merges values into the chart's: mappings are joined, a null removes a key."""
    found = copy.deepcopy(dict(under))
    for key, value in over.items():
        below = found.get(key)
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(below, Mapping):
            found[key] = merge_values(below, value)
        else:
            found[key] = copy.deepcopy(value)
    return found


def _fill_in(fields: Mapping[str, Any], written: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the keys that have a value, like the template's conditions; versions as text."""
    found = {key: value for key, value in fields.items() if value not in (None, "", [], {})}
    for key in ("repoConfig", "certConfig", "virtualTopology", "kernelModuleConfig"):
        if key in found and not is_set(found[key]):
            del found[key]
    licence = found.get("licensingConfig")
    if isinstance(licence, Mapping) and not any(licence.get(key) for key in ("secretName", "configMapName")):
        del found["licensingConfig"]
    if written is not None and not written.get("startupProbe"):
        found.pop("startupProbe", None)  # the chart's, which no user chose
    for key, value in found.items():
        if isinstance(value, Mapping):
            found[key] = {name: below for name, below in value.items() if below not in (None, "", [])}
    version = found.get("version")
    if isinstance(version, int) and not isinstance(version, bool):
        found["version"] = str(version)
    return found
