"""Shapes of built-in kinds: what is unknown, missing, of the wrong type, defaulted."""

import pytest

from tessera_lab.apiserver.interfaces import Obj
from tessera_lab.apiserver.schemas import schema_library
from tessera_lab.apiserver.schemas.builtin_schema import BuiltinSchema, builtin_schema
from tessera_lab.apiserver.status import StatusError


def pod(**spec: object) -> Obj:
    containers = [{"name": "a", "image": "b", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers, **spec}}


def shape(kind: str = "Pod", group: str = "", version: str = "v1") -> BuiltinSchema:
    found = builtin_schema(group, version, kind)
    assert found is not None
    return found


def test_every_served_kind_has_a_definition() -> None:
    found = schema_library()
    assert all(name in found.definitions for name in found.kinds.values())
    assert builtin_schema("apps", "v1", "Deployment") is not None
    assert builtin_schema("example.com", "v1", "Deployment") is None


def test_unknown_fields_are_named_by_path() -> None:
    obj = pod(foo=1)
    obj["spec"]["containers"][0]["bar"] = {}
    obj["metadata"]["labels"] = {"any": "thing"}
    assert sorted(shape().unknown_fields(obj)) == ["spec.containers[0].bar", "spec.foo"]


def test_pruning_removes_them_and_nothing_else() -> None:
    obj = pod(foo=1)
    shape().prune(obj)
    assert obj == pod()


def test_free_form_places_know_every_field() -> None:
    crd = {"spec": {"versions": [{"schema": {"openAPIV3Schema": {"default": {"x": [1]}, "items": {"y": 1}}}}]}}
    assert shape("CustomResourceDefinition", "apiextensions.k8s.io").unknown_fields(crd) == []


@pytest.mark.parametrize(
    ("obj", "field"),
    [
        (pod(containers=[]), "spec.containers"),
        (pod(containers=[{"image": "x"}]), "spec.containers[0].name"),
        (pod(tolerations=[{"key": "a"}], volumes=[{}]), "spec.volumes[0].name"),
    ],
)
def test_required_fields(obj: Obj, field: str) -> None:
    (cause,) = shape().validate(obj, None)
    assert (cause.field, cause.reason, cause.message) == (field, "FieldValueRequired", "Required value")


def test_a_status_may_lack_what_the_definitions_call_required() -> None:
    obj = pod()
    obj["status"] = {"containerStatuses": [{"name": "a", "ready": True}], "conditions": [{"type": "Ready"}]}
    assert shape().validate(obj, None) == []


def test_false_is_a_value() -> None:
    names = {"plural": "as", "kind": "A", "singular": "a"}
    versions = [{"name": "v1", "served": False, "storage": False}]
    crd = {"spec": {"group": "x.y", "names": names, "scope": "Namespaced", "versions": versions}}
    assert shape("CustomResourceDefinition", "apiextensions.k8s.io").validate(crd, None) == []


def test_unsupported_values_list_what_is_supported() -> None:
    (cause,) = shape().validate(pod(restartPolicy="Sometimes"), None)
    assert cause.message == 'Unsupported value: "Sometimes": supported values: "Always", "Never", "OnFailure"'


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"terminationGracePeriodSeconds": "x"}, "cannot unmarshal string into Go struct field PodSpec.spec.termin"),
        ({"containers": {}}, "cannot unmarshal object into Go struct field PodSpec.spec.containers"),
        ({"hostNetwork": "yes"}, "of type bool"),
        ({"priority": 2**40}, "cannot unmarshal number 1099511627776 into"),
        ({"overhead": {"cpu": "lots"}}, "quantities must match the regular expression"),
    ],
)
def test_wrong_types_are_decoding_errors(spec: dict[str, object], text: str) -> None:
    with pytest.raises(StatusError, match=r'^Pod in version "v1" cannot be handled as a Pod: ') as caught:
        shape().validate(pod(**spec), None)
    assert caught.value.code == 400
    assert text in str(caught.value)


def test_null_is_absent() -> None:
    assert shape().validate(pod(nodeSelector=None, tolerations=None), None) == []


def test_quantities_may_be_numbers() -> None:
    assert shape().validate(pod(overhead={"cpu": 1, "memory": "1.5Gi", "x/y": "1e3"}), None) == []


def test_static_defaults() -> None:
    obj = pod(hostNetwork=True, restartPolicy="Never")
    obj["spec"]["containers"][0]["ports"] = [{"containerPort": 80}]
    shape().default(obj)
    assert obj["spec"]["restartPolicy"] == "Never"
    assert obj["spec"]["terminationGracePeriodSeconds"] == 30
    assert obj["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]


def test_defaults_of_a_nested_template() -> None:
    obj: Obj = {"spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "a"}]}}}}
    shape("Deployment", "apps").default(obj)
    assert obj["spec"]["strategy"] == {"type": "RollingUpdate"}
    assert obj["spec"]["template"]["spec"]["dnsPolicy"] == "ClusterFirst"


def test_defaulting_twice_changes_nothing() -> None:
    once, twice = pod(), pod()
    shape().default(once)
    shape().default(twice)
    shape().default(twice)
    assert once == twice
