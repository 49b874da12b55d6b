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
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import msgspec

from tessera.api.documents import first_document
from tessera.api.gpu_operator.driver_objects import merge_values
from tessera.api.operator_fields.keys import VALUES
from tessera.api.problems import FileRefused, Notice, Problem, join_path, quote_value
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
#: Keys at the top of NVIDIA's chart by which its values are recognized.
_OWN = frozenset(VALUES) & {
    *("ccManager", "cdi", "daemonsets", "dcgm", "dcgmExporter", "devicePlugin", "driver", "gdrcopy", "gfd"),
    *("hostPaths", "kataManager", "mig", "migManager", "nodeStatusExporter", "sandboxWorkloads", "toolkit"),
    *("validator", "vfioManager", "vgpuDeviceManager", "vgpuManager"),
}


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


def find_values(document: Any) -> list[EmbeddedValues]:
    """Returns the values of NVIDIA's chart in a document; none for a plain values file.

    Raises:
        FileRefused: a text with values cannot be read.
    """
    if not isinstance(document, Mapping) or ("kind" not in document and _count_own(document)):
        return []
    below = None if "kind" in document else _find_subchart(document, "")
    return [below] if below is not None else list(_search(document))


def _count_own(values: Mapping[str, Any]) -> int:
    return len(_OWN.intersection(map(str, values)))


def _is_ours(name: str) -> bool:
    """True for the name of NVIDIA's chart, of its subchart in another one, or of Tessera's chart."""
    plain = name.casefold().replace("_", "").replace("-", "")
    return "gpuoperator" in plain or plain.rpartition("/")[2] == "tessera"


def _find_subchart(values: Mapping[str, Any], path: str) -> EmbeddedValues | None:
    """The values of a subchart, whatever the chart around calls it; the nearest to the top."""
    level = [(path, values)]
    while level:
        below = []
        for above, found in level:
            for key, value in found.items():
                at = join_path(above, str(key))
                if not isinstance(value, Mapping):
                    continue
                if _is_ours(str(key)) or _count_own(value) > 1:
                    # The chart around switches the subchart by this key.
                    return EmbeddedValues(path=at, values={key: value[key] for key in value if key != "enabled"})
                below.append((at, value))
        level = below
    return None


def _search(document: Mapping[str, Any]) -> Iterator[EmbeddedValues]:
    """Yields the values that stand in a document under a key of a tool, in its order."""
    waiting: list[tuple[Any, str, str]] = [(document, "", "")]
    while waiting:
        node, path, chart = waiting.pop()
        if isinstance(node, Mapping):
            chart = _chart_of(node) or chart
            found = _read_holder(node, path, chart)
            if found is not None:
                yield found
            else:
                waiting += [(node[key], join_path(path, str(key)), chart) for key in reversed(list(node))]
        elif isinstance(node, list):
            numbered = list(enumerate(node))
            waiting += [(item, f"{path}[{number}]", chart) for number, item in reversed(numbered)]


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


def _read_holder(node: Mapping[str, Any], path: str, chart: str) -> EmbeddedValues | None:
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
            read = None if key in _SOURCES else _load(item, at, ours=_is_ours(chart))
            if isinstance(read, Mapping):
                values = merge_values(values, read)
            else:
                unread.append(Notice(at, _UNREAD.format(_describe_source(item))))
    place = join_path(path, held[0])
    subchart = None if _count_own(values) else _find_subchart(values, place)
    if subchart is not None:
        return msgspec.structs.replace(subchart, unread=tuple(unread))
    by_keys = held[0] in _VALUES and _count_own(values) > (1 if chart else 0)
    return EmbeddedValues(path=place, values=values, unread=tuple(unread)) if by_keys or _is_ours(chart) else None


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
