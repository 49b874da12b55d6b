"""Recognizes values of NVIDIA's device-plugin chart, which Tessera does not read; only their profiles are checked."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.gpu_operator.settings.embedded_values import Chart, EmbeddedValues, find_values

#: Keys of NVIDIA's device-plugin chart that gpu-operator's chart and sharing profiles do not have at their top.
_KEYS = frozenset(
    {
        "allowDefaultNamespace",
        "compatWithCPUManager",
        "deviceDiscoveryStrategy",
        "deviceIDStrategy",
        "deviceListStrategy",
        "failOnInitError",
        "gdrcopyEnabled",
        "gdsEnabled",
        "legacyDaemonsetAPI",
        "migStrategy",
        "mofedEnabled",
        "nvidiaDriverRoot",
        "selectorLabelsOverride",
    }
)
#: The advice about values of that chart.
PLUGIN_ADVICE = (
    "are values of NVIDIA's device-plugin chart, which Tessera does not read; put each profile under a key of a"
    " ConfigMap, and name that ConfigMap in values of gpu-operator: devicePlugin.config.name, mig.strategy"
)

#: Its keys are too common to recognize it by them inside another document.
_CHART = Chart(re.compile(r"nvidiadeviceplugin"))


def is_plugin_chart(document: Mapping[str, Any]) -> bool:
    """True for a plain values file of the chart."""
    if {"version", "sharing", "flags", "driver", "toolkit", "migManager"} & document.keys():
        return False  # a sharing profile, or values of gpu-operator
    config, own = document.get("config"), _KEYS & document.keys()
    if isinstance(config, Mapping) and "map" in config:
        return True
    # Newer charts have a switch devicePlugin.enabled too; beside one other key it is the component of gpu-operator.
    return len(own) > 1 if "devicePlugin" in document else bool(own)


def find_plugin_values(document: Any) -> Sequence[EmbeddedValues]:
    """The chart's values inside an object of another tool, or below its key in another chart's values.

    Raises:
        FileRefused: a text with values cannot be read.
    """
    return find_values(document, _CHART)
