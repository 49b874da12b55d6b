"""The settings of NVIDIA's chart that have no effect, as a table for ``NOTES.txt``.

The table has the same reasons as ``tessera config check`` (:mod:`tessera.gpu_operator.without_effect`). Each
entry has the places that it looks at, the condition, and the text.
"""

from collections.abc import Mapping
from typing import Any

from tessera.gpu_operator import without_effect as reasons
from tessera.gpu_operator.driver_policy import DRIVER_ROOT
from tessera.gpu_operator.keys import DROPPED, FLAG, SWITCHES, UNKNOWN, VALUES, Leaf, Shape
from tessera.gpu_operator.without_effect import MANAGER_FOLLOWED, PLUGIN_FOLLOWED


def tables() -> Mapping[str, Any]:
    """The tables, by name."""
    return {
        "keys": _kinds(VALUES),
        "switches": dict(SWITCHES),
        "unknown": f"{UNKNOWN}; tessera config check FILE names the place that may be meant",
        "dropped": DROPPED,
        "components": dict(reasons.COMPONENTS),
        "sandboxes": sorted(reasons.OF_SANDBOXES),
        "groups": [{"keys": list(keys), "reason": reason} for keys, reason in reasons.GROUPS],
        "variables": {
            "devicePlugin": {"known": dict(reasons.PLUGIN_ENV), "followed": list(PLUGIN_FOLLOWED)},
            "migManager": {"known": dict(reasons.MIG_ENV), "followed": list(MANAGER_FOLLOWED)},
        },
        "usualPaths": dict(reasons.USUAL_PATHS),
        "withoutDrivers": dict(reasons.WITHOUT_DRIVERS),
        "driverRoot": DRIVER_ROOT,
        "single": dict(reasons.SINGLE),
        "withDrivers": {
            "driver": dict(reasons.DRIVER),
            "daemonsets": dict(reasons.DAEMONSETS),
            "toolkit": dict(reasons.TOOLKIT),
        },
    }


def _kinds(shape: Shape) -> Any:
    """The keys with what stands below each: more keys, a switch, or any value."""
    if isinstance(shape, Leaf):
        return "switch" if shape is FLAG else "value"
    return {key: _kinds(below) for key, below in shape.items()}
