"""Finds values of NVIDIA's chart inside other documents: objects of GitOps tools, lists of charts, umbrella charts.

Values stand under one of a few keys, whichever tool reads them: ``values`` and ``valuesFrom`` in a HelmRelease of Flux,
``helm.valuesObject`` and ``helm.parameters`` in an Application of Argo CD, ``valuesContent`` and ``set`` in a HelmChart
of k3s, ``valuesInline`` in a kustomization, ``values`` in a helmfile. So this module looks for these keys, and not for
kinds. A text is read as YAML, since several tools hold the values as text.

Rules:

- Values count as those of NVIDIA's chart if the tool names a chart ``gpu-operator``, or if their keys are its own.
- Values below a key such as ``gpu-operator:`` are those of a chart that has NVIDIA's as a subchart.
- A later source overrides an earlier one key by key, and single values come last, as in Helm.
- Sources that are no part of the document, such as files and Secrets, are named: their values count too.

Values of another chart can be found in the same way, see :class:`Chart`.

It also recognizes values of NVIDIA's device-plugin chart, which Tessera does not read; only their profiles are checked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import msgspec

from tessera.api.documents import first_document
from tessera.api.problems import FileRefused, Notice, Problem, join_path, quote_value
from tessera.gpu_operator.driver_objects import merge_values
from tessera.gpu_operator.keys import VALUES
from tessera.text import one_line

#: Keys under which tools hold values, in the order in which their sources override each other.
_VALUES = ("values", "valuesContent", "valuesTemplate", "valuesInline", "release_values", "valuesObject")
#: Keys of single values: a mapping, or a list of names and values.
_SINGLE = ("set", "setValues", "parameters")
#: Keys of sources elsewhere.
_SOURCES = (
    *("valuesFrom", "valuesSecrets", "valueFiles", "valuesFile", "valuesFiles", "values_files"),
    "additionalValuesFiles",
)
#: Keys that name a chart.
_CHARTS = ("chart", "chartName", "chartname", "chartRef", "chart_ref", "remoteChart")


class Chart(msgspec.Struct, frozen=True):
    """A chart whose values are looked for.

    Attributes:
        name: found in its names, and in those of its subchart, in small letters without dashes.
        keys: keys at the top of its values by which they are recognized without a name.
    """

    name: re.Pattern[str]
    keys: frozenset[str] = frozenset()

    def is_named(self, name: str) -> bool:
        """True for a name of the chart, or of its subchart in another one."""
        return self.name.search(name.casefold().replace("_", "").replace("-", "")) is not None

    def count_keys(self, values: Mapping[str, Any]) -> int:
        """How many keys at the top are the chart's own."""
        return len(self.keys.intersection(map(str, values)))


#: NVIDIA's chart of the operator, and Tessera's own, which takes the same values.
OPERATOR_CHART = Chart(
    re.compile(r"gpuoperator|(^|/)tessera$"),
    frozenset(VALUES)
    & {
        *("ccManager", "cdi", "daemonsets", "dcgm", "dcgmExporter", "devicePlugin", "driver", "gdrcopy", "gfd"),
        *("hostPaths", "kataManager", "mig", "migManager", "nodeStatusExporter", "sandboxWorkloads", "toolkit"),
        *("validator", "vfioManager", "vgpuDeviceManager", "vgpuManager"),
    },
)


class EmbeddedValues(msgspec.Struct, frozen=True, kw_only=True):
    """Values of NVIDIA's chart in another document.

    Attributes:
        path: their place in the document.
        values: the values.
        unread: sources that are no part of the document, and single values that are not read.
    """

    path: str
    values: Mapping[str, Any]
    unread: tuple[Notice, ...] = ()


def find_values(document: Any, chart: Chart = OPERATOR_CHART) -> list[EmbeddedValues]:
    """Returns the values of a chart in a document; none for a plain values file.

    Raises:
        FileRefused: a text with values cannot be read.
    """
    if not isinstance(document, Mapping) or ("kind" not in document and chart.count_keys(document)):
        return []
    below = None if "kind" in document else _find_subchart(document, "", chart)
    return [below] if below is not None else list(_search(document, chart))


def _find_subchart(values: Mapping[str, Any], path: str, chart: Chart) -> EmbeddedValues | None:
    """The values of a subchart, whatever the chart around calls it; the nearest to the top."""
    level = [(path, values)]
    while level:
        below = []
        for above, found in level:
            for key, value in found.items():
                at = join_path(above, str(key))
                if not isinstance(value, Mapping):
                    continue
                if chart.is_named(str(key)) or chart.count_keys(value) > 1:
                    # The chart around switches the subchart by this key.
                    return EmbeddedValues(path=at, values={key: value[key] for key in value if key != "enabled"})
                below.append((at, value))
        level = below
    return None


def _search(document: Mapping[str, Any], chart: Chart) -> Iterator[EmbeddedValues]:
    """Yields the values that stand in a document under a key of a tool, in its order."""
    waiting: list[tuple[Any, str, str]] = [(document, "", "")]
    while waiting:
        node, path, named = waiting.pop()
        if isinstance(node, Mapping):
            named = _chart_of(node) or named
            found = _read_holder(node, path, named, chart)
            if found is not None:
                yield found
            else:
                waiting += [(node[key], join_path(path, str(key)), named) for key in reversed(list(node))]
        elif isinstance(node, list):
            numbered = list(enumerate(node))
            waiting += [(item, f"{path}[{number}]", named) for number, item in reversed(numbered)]


def _chart_of(node: Mapping[str, Any]) -> str:
    """The chart that a part of a document names; empty for none."""
    named = next((node[key] for key in _CHARTS if node.get(key)), None)
    if isinstance(named, Mapping):
        inner = named.get("spec")
        named = inner.get("chart") if isinstance(inner, Mapping) else named.get("name")
    if named is None and ("valuesInline" in node or "valuesFile" in node):  # of a kustomization
        named = node.get("name")
    if named is None and node.get("kind") == "HelmChartConfig" and isinstance(node.get("metadata"), Mapping):
        named = node["metadata"].get("name")
    return named if isinstance(named, str) else ""


def _read_holder(node: Mapping[str, Any], path: str, named: str, chart: Chart) -> EmbeddedValues | None:
    """The values right below a part of a document; ``None`` if it has none, or those of another chart."""
    held = [key for key in (*_VALUES, *_SINGLE, *_SOURCES) if node.get(key)]
    if not held:
        return None
    values: dict[str, Any] = {}
    unread: list[Notice] = []
    for key in held:
        at = join_path(path, key)
        if key in _SINGLE:
            unread += [Notice(at, _UNREAD.format(name)) for name in _set_all(values, node[key])]
            continue
        for item in node[key] if isinstance(node[key], list) else [node[key]]:
            read = None if key in _SOURCES else _load(item, at, ours=chart.is_named(named))
            if isinstance(read, Mapping):
                values = merge_values(values, read)
            else:
                unread.append(Notice(at, _UNREAD.format(_describe_source(item))))
    place = join_path(path, held[0])
    subchart = None if chart.count_keys(values) else _find_subchart(values, place, chart)
    if subchart is not None:
        return msgspec.structs.replace(subchart, unread=tuple(unread))
    by_keys = held[0] in _VALUES and chart.count_keys(values) > (1 if named else 0)
    ours = by_keys or chart.is_named(named)
    return EmbeddedValues(path=place, values=values, unread=tuple(unread)) if ours else None


_UNREAD = "{} is not read here, and its values count too: check them as a file of their own"


def _describe_source(source: Any) -> str:
    """A source of values elsewhere: ``ConfigMap gpu-values``, or the name of a file."""
    if isinstance(source, Mapping) and all(isinstance(source.get(key), str) for key in ("kind", "name")):
        return one_line(f"{source['kind']} {source['name']}")
    return quote_value(source)


def _load(item: Any, path: str, *, ours: bool) -> Any:
    """The values in a text of several lines or in braces; other texts are names of files."""
    if not isinstance(item, str) or not ("\n" in item or ": " in item or item.startswith("{")):
        return item
    try:
        return first_document(item)[0]
    except FileRefused as refused:
        if ours:
            raise FileRefused([Problem(path, str(each)) for each in refused.problems]) from refused
        return None


def _set_all(values: dict[str, Any], given: Any) -> Iterator[str]:
    """Sets single values, as of ``helm --set``; yields the names that are more than words between dots."""
    if isinstance(given, Mapping):
        pairs = [(str(name), value) for name, value in given.items()]
    else:
        items = [item for item in given if isinstance(item, Mapping)] if isinstance(given, list) else []
        pairs = [(str(item.get("name")), item.get("value")) for item in items]
    for name, value in pairs:
        words = name.split(".")
        if not all(word.replace("-", "").replace("_", "").isalnum() for word in words):
            yield quote_value(name)
            continue
        values |= merge_values(values, reduce(lambda below, word: {word: below}, reversed(words), value))


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
