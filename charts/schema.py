"""The schema of the chart's values: NVIDIA's keys, and Tessera's own below ``tessera``.

NVIDIA's chart ignores keys that it does not have, and reads a text such as ``"true"`` as a switch, so its part of the
schema allows them; the templates drop or convert them. Tessera's own keys are closed.

Helm prints the path and the rule of each value that the schema refuses. Of a pattern it would print only the regular
expression, so the forms of texts are rules of the templates instead, which say what to write (:mod:`charts.rules`,
:mod:`charts.group_rules`). A
null is allowed everywhere, as in Helm: it removes a value.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.api.names import CLAIM_DRIVERS, CLAIM_PLACEMENTS
from tessera.api.nodes.node_groups import NODE_GROUPS, NodeGroup
from tessera.api.nodes.repairs import Repairs
from tessera.gpu_operator.keys import VALUES, Leaf, Shape

Schema = dict[str, Any]

_SWITCH: Schema = {"type": ["boolean", "string", "null"]}
_TEXT: Schema = {"type": ["string", "null"]}
_TEXTS: Schema = {"type": "array", "items": {"type": "string", "minLength": 1}}
_MAP: Schema = {"type": "object"}
_TEXT_MAP: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_LIST: Schema = {"type": "array", "items": {"type": "object"}}
_ENV: Schema = {
    "type": ["array", "null"],
    "items": {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "value": _TEXT, "valueFrom": {"type": ["object", "null"]}},
        "additionalProperties": False,
    },
}
#: Keys of a schema that have no effect on what it refuses.
_FOR_READERS = frozenset({"title", "description", "default"})
_LEAVES: Mapping[Leaf, Schema] = {Leaf.ANY: {}, Leaf.FLAG: _SWITCH, Leaf.TEXT: _TEXT, Leaf.ENV: _ENV}


def _of_type(kind: type) -> Schema:
    """The schema of a struct of :mod:`tessera.api`, in the words of draft 7: the same names, types and ranges."""
    (found,), parts = msgspec.json.schema_components([kind])
    return dict(_inline(found, parts))


def _inline(part: Any, parts: Mapping[str, Any]) -> Any:
    """A part of a schema with the parts to which it refers in it, without what only documentation needs."""
    if isinstance(part, list):
        return [_inline(each, parts) for each in part]
    if not isinstance(part, dict):
        return part
    if reference := part.get("$ref"):
        return _inline(parts[reference.rpartition("/")[2]], parts)
    if types := part.get("anyOf"):  # of plain types: Helm names both in its message, and of anyOf nothing
        ranges = {key: value for each in types for key, value in each.items()}
        return _inline(ranges | {"type": [each["type"] for each in types]}, parts)
    return {key: _inline(value, parts) for key, value in part.items() if key not in _FOR_READERS}


def values_schema() -> Schema:
    """The schema, in draft 7 of JSON Schema, which Helm 3 reads."""
    nvidia = {key: _of_shape(shape) for key, shape in VALUES.items()}
    strategy = {"enum": ["none", "single", "mixed", "", None]}
    nvidia["mig"]["properties"]["strategy"] = strategy
    for component in ("devicePlugin", "migManager"):
        properties = nvidia[component]["properties"]["config"]["properties"]
        properties["name"] = _TEXT
        properties["data"] = {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the Tessera chart",
        "type": "object",
        "properties": {**nvidia, "tessera": _own()},
    }


def _of_shape(shape: Shape) -> Schema:
    if isinstance(shape, Leaf):
        return dict(_LEAVES[shape])
    return {"properties": {key: _of_shape(below) for key, below in shape.items()}}


def _closed(properties: Mapping[str, Schema], description: str = "") -> Schema:
    found: Schema = {"type": "object", "additionalProperties": False, "properties": dict(properties)}
    return {**found, "description": description} if description else found


def _own() -> Schema:
    workload = {
        "resources": _MAP,
        "priorityClassName": {"type": "string"},
        "nodeSelector": _TEXT_MAP,
        "tolerations": _LIST,
        "podLabels": _TEXT_MAP,
        "podAnnotations": _TEXT_MAP,
        "extraArgs": _TEXTS,
    }
    central = {**workload, "replicas": {"type": "integer", "minimum": 1, "maximum": 10}, "affinity": _MAP}
    return _closed(
        {
            "image": _closed(
                {
                    "repository": {"type": "string", "minLength": 1},
                    "tag": {"type": "string"},
                    "digest": {"type": "string"},
                    "pullPolicy": {"enum": ["", "Always", "IfNotPresent", "Never"]},
                    "pullSecrets": {"type": "array", "items": _closed({"name": {"type": "string", "minLength": 1}})},
                }
            ),
            "crds": _closed({"install": {"type": "boolean"}}),
            "removal": _closed(
                {
                    **{key: {"type": "boolean"} for key in ("hook", "keepSlices", "force")},
                    "timeoutSeconds": {"type": "integer", "minimum": 1, "maximum": 86400},
                }
            ),
            "criticalPodsQuota": {"type": "boolean"},
            "drivers": {"enum": ["auto", "install", "host"]},
            "driverPullSecrets": _TEXTS,
            "deviceAccess": _closed({"action": {"enum": ["deny", "warn", "off"]}, "namespaces": _TEXTS}),
            "flowSchemas": {"type": "boolean"},
            "networkPolicy": _closed(
                {
                    "enabled": {"type": "boolean"},
                    "apiServers": _TEXTS,
                }
            ),
            "monitoring": _closed(
                {
                    **{
                        key: {"type": "boolean"}
                        for key in ("podMonitors", "prometheusRule", "podAnnotations", "dashboards")
                    },
                    "metricsAccess": {"enum": ["reviewed", "open"]},
                    "runbooks": {"type": "string", "minLength": 1},
                    **{key: {"type": "integer", "minimum": 1} for key in ("hotCelsius", "hotMemoryCelsius")},
                    **dict.fromkeys(("labels", "dashboardLabels"), _TEXT_MAP),
                }
            ),
            "podSecurity": {"type": "boolean"},
            "openshift": {"enum": ["auto", True, False]},
            "policies": _closed({name: {"type": "boolean"} for name in ("agents", "drivers", "namespaces", "pins")}),
            "registries": _closed({"authorities": {"type": "string"}, "plainHttp": _TEXTS}),
            "startup": _closed({"taints": _TEXTS, "deadline": {"type": "string"}}),
            "builds": _closed(
                {
                    "buildahImage": {"type": "string"},
                    "baseImages": _TEXT_MAP,
                    "dtkImages": _TEXT_MAP,
                    "downloads": {"type": "string"},
                    "caConfigMap": {"type": "string"},
                    "tlsVerify": {"type": "boolean"},
                    "nvswitch": {"type": "boolean"},
                }
            ),
            "controller": _closed(
                {
                    **central,
                    "replaceFailed": {"type": "integer", "minimum": 0, "maximum": 100},
                    "preempt": {"type": "boolean"},
                    "reservations": {"type": "string"},
                    "scaleUp": {"enum": ["", "off", "placeholder", "provisioning-request", "auto"]},
                    "moves": {"enum": ["", "off", "recommend", "evict"]},
                    "movesPerHour": {"type": "integer", "minimum": 0, "maximum": 400},
                    "handover": {"enum": ["", "off", "inherit", "on"]},
                    "preferences": {"enum": ["", "ties", "price", "first"]},
                    "nodeGroups": {
                        "type": ["array", "null"],
                        "maxItems": int(NODE_GROUPS),
                        "items": _of_type(NodeGroup),
                    },
                }
            ),
            "dashboard": _closed(
                {
                    **central,
                    "enabled": {"type": "boolean"},
                    "origins": _TEXTS,
                    "withoutToken": {"enum": ["refuse", "hide-names"]},
                    "prometheus": _closed({"url": {"type": "string"}, "labels": _TEXTS}),
                    "kedaPort": {"type": "integer", "minimum": 0, "maximum": 65535},
                }
            ),
            "webhook": _closed(
                {
                    **central,
                    "podDisruptionBudget": {"type": "boolean"},
                    "certManager": _closed(
                        {
                            "enabled": {"type": "boolean"},
                            "issuer": _closed(
                                {"kind": {"enum": ["Issuer", "ClusterIssuer"]}, "name": {"type": "string"}}
                            ),
                        }
                    ),
                }
            ),
            "claims": _closed({"driver": {"enum": ["", *CLAIM_DRIVERS]}, "placement": {"enum": [*CLAIM_PLACEMENTS]}}),
            "mps": _closed(workload),
            "repairs": _of_type(Repairs),
            "agent": _closed(
                {
                    **workload,
                    "updateStrategy": _MAP,
                    "simulate": {"type": "string"},
                    "migEvict": {"type": "boolean"},
                    "memoryLimits": {"enum": ["", "off", "observe", "warn", "evict", "kill"]},
                }
            ),
        },
        "Tessera's own values.",
    )
