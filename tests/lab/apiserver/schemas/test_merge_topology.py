"""Merge rules read from schemas."""

from tessera_lab.apiserver.schemas.merge_topology import builtin_topology, crd_topology


def test_ports_have_two_keys_one_with_a_default() -> None:
    pod = builtin_topology("apps", "v1", "Deployment").fields["spec"].fields["template"].fields["spec"]
    items = pod.fields["containers"].items
    assert items is not None
    ports = items.fields["ports"]
    assert (ports.keys, ports.key_defaults) == (("containerPort", "protocol"), {"protocol": "TCP"})
    assert ports.merge_key == "containerPort"


def test_atomic_maps_and_retained_keys() -> None:
    spec = builtin_topology("apps", "v1", "Deployment").fields["spec"]
    assert spec.fields["selector"].atomic_map
    assert spec.fields["strategy"].retain_keys


def test_a_custom_resource_has_its_schema_s_rules_and_plain_metadata() -> None:
    item = {"type": "object", "properties": {"id": {"type": "string", "default": "x"}}}
    rules = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]}
    schema = {"type": "object", "properties": {"spec": {"type": "array", "items": item, **rules}}}
    root = crd_topology(schema)
    assert root.fields["spec"].keys == ("id",)
    assert root.fields["spec"].key_defaults == {"id": "x"}
    assert root.fields["metadata"].fields["ownerReferences"].keys == ("uid",)
