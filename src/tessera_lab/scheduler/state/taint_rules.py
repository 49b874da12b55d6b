"""DeviceTaintRules: taints that an administrator gives to devices without writing their ResourceSlices.

Source: ``resourceslice/tracker`` of k8s.io/dynamic-resource-allocation. A rule without a selector matches no device,
one with an empty selector all; every field of it that is set must be equal. The taint counts as one of the driver's.
"""

from collections.abc import Mapping
from typing import Any

from tessera.dra.devices import DeviceId

Json = Mapping[str, Any]


class TaintRules:
    """The rules by name."""

    def __init__(self) -> None:
        self._rules: dict[str, Json] = {}

    def __bool__(self) -> bool:
        return bool(self._rules)

    def set(self, item: Json, *, gone: bool = False) -> None:
        """A rule was made, changed or deleted."""
        name = item["metadata"]["name"]
        if gone:
            self._rules.pop(name, None)
        else:
            self._rules[name] = item["spec"]

    def taints(self, device: DeviceId) -> tuple[Json, ...]:
        """The taints of a device by rules."""
        return tuple(each["taint"] for each in self._rules.values() if _matches(each.get("deviceSelector"), device))

    def apply(self, item: Json) -> Json:
        """The ResourceSlice with the taints of its devices by rules."""
        spec = item["spec"]
        if not self._rules or not spec.get("devices"):
            return item
        devices = [
            {**each, "taints": [*(each.get("taints") or ()), *self.taints(_id(spec, each))]} for each in spec["devices"]
        ]
        return {**item, "spec": {**spec, "devices": devices}}


def _id(spec: Json, device: Json) -> DeviceId:
    return DeviceId(spec["driver"], spec["pool"]["name"], device["name"])


def _matches(selector: Json | None, device: DeviceId) -> bool:
    if selector is None:
        return False
    given = {"driver": device.driver, "pool": device.pool, "device": device.device}
    return all(selector.get(key) in {None, value} for key, value in given.items())
