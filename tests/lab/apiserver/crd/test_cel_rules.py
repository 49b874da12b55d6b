"""Rules in CEL that a CRD's schema states: which are taken, and what they refuse, in kube-apiserver 1.36's words."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.lab.apiserver.crd.test_definition_rules import ROOT, crd, texts

from tessera_lab.apiserver.crd.definition_rules import validate_definition
from tessera_lab.apiserver.crd.structural_schema import StructuralSchema
from tessera_lab.apiserver.status import StatusError

RULES = "x-kubernetes-validations"
SAME = {"rule": "self == oldSelf", "message": "cannot be changed"}
BOTH = {"rule": "!(has(self.default) && self.default && has(self.nodeSelector) && size(self.nodeSelector) > 0)"}
NOT_HELD = (
    "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the"
    " existing errors to complete validation"
)


def node(kind: str, *rules: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": kind, RULES: list(rules), **more}


#: A rule over two fields, one of each kind of transition, and a field without rules.
SPEC = node(
    "object",
    BOTH,
    properties={
        "default": {"type": "boolean"},
        "nodeSelector": {"type": "object", "additionalProperties": {"type": "string"}},
        "kind": node("string", SAME, enum=["a", "b"], default="a"),
        "flag": node("boolean", {"rule": "self == oldSelf"}),
        "named": {"type": "object", "additionalProperties": node("integer", SAME)},
        "sizes": {"type": "array", "items": node("integer", {"rule": "self < 5", "message": "is too large"})},
        "free": {"type": "integer", "minimum": 0},
    },
)


def refused(spec: Any, old: Any = None, *, schema: Mapping[str, Any] = SPEC) -> list[str]:
    """The errors of a spec that is created, or that replaces ``old``."""
    shape = StructuralSchema({"type": "object", "properties": {"spec": schema}})
    found = shape.validate({"spec": spec}, None if old is None else {"spec": old})
    return [f"{cause.field}: {cause.message}" for cause in found]


def test_what_a_rule_wants_is_told_in_its_message() -> None:
    assert refused({"sizes": [1, 7]}) == ["spec.sizes[1]: Invalid value: 7: is too large"]


def test_a_rule_without_a_message_is_told_itself() -> None:
    text = f"spec: Invalid value: failed rule: {BOTH['rule']}"
    assert refused({"default": True, "nodeSelector": {"a": "b"}}) == [text]
    assert refused({"default": False, "nodeSelector": {"a": "b"}}) == refused({"default": True}) == []


def test_a_transition_rule_is_of_a_field_that_was_there_before() -> None:
    assert refused({"kind": "b", "flag": True}) == []
    assert refused({"kind": "a", "flag": False, "free": 2}, {"kind": "b", "flag": True, "free": 1}) == [
        'spec.kind: Invalid value: "a": cannot be changed',
        "spec.flag: Invalid value: false: failed rule: self == oldSelf",
    ]
    assert refused({"kind": "b"}, {"kind": "b", "flag": True}) == []
    assert refused({"kind": "b", "flag": False}, {"kind": "b"}) == []
    assert refused({"named": {"a": 2, "b": 1}}, {"named": {"a": 1}}) == [
        "spec.named.a: Invalid value: 2: cannot be changed"
    ]


def test_what_an_update_leaves_as_it_was_is_not_judged_again() -> None:
    both = {"default": True, "nodeSelector": {"a": "b"}}
    assert refused(both, both) == []
    assert len(refused({**both, "free": 1}, both)) == 1


@pytest.mark.parametrize("spec", [{"kind": "c"}, {"kind": "b", "flag": "yes"}])
def test_no_rule_is_held_of_what_has_wrong_types_or_values(spec: Any) -> None:
    found = refused(spec, {"kind": "a", "flag": True})
    assert len(found) == 2
    assert found[-1] == NOT_HELD


def test_a_value_out_of_range_keeps_no_rule_from_being_held() -> None:
    assert [each.partition(":")[0] for each in refused({"free": -1, "sizes": [7]})] == ["spec.free", "spec.sizes[0]"]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("FieldValueInvalid", "Invalid value: 7: no"),
        ("FieldValueForbidden", "Forbidden: no"),
        ("FieldValueRequired", "Required value: no"),
        ("FieldValueDuplicate", "Duplicate value: 7"),
    ],
)
def test_reasons(reason: str, text: str) -> None:
    schema = node("integer", {"rule": "self < 5", "message": "no", "reason": reason})
    assert refused(7, schema=schema) == [f"spec: {text}"]


def test_a_rule_that_cannot_be_evaluated_refuses() -> None:
    schema = node("object", {"rule": "self.n < 5", "message": "small"}, properties={"n": {"type": "integer"}})
    assert refused({}, schema=schema) == ['spec: Invalid value: "object": no such key: n evaluating rule: small']


# -- definitions ----------------------------------------------------------------------------------------------------

SPEC_PATH = f"{ROOT}.properties[spec]"
WHERE = f"{SPEC_PATH}.{RULES}[0]"


def test_good_rules_are_taken() -> None:
    assert texts(crd(SPEC)) == []


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"rule": ""}, "rule: Required value: rule is not specified"),
        ({"rule": "true", "message": " "}, 'message: Invalid value: " ": must be non-empty if specified'),
        ({"rule": "true", "message": "a\nb"}, 'message: Invalid value: "a\\nb": must not contain line breaks'),
        ({"rule": "a\n"}, "message: Required value: message must be specified if rule contains line breaks"),
        ({"rule": "true", "reason": "Y"}, 'reason: Unsupported value: "Y": supported values: "FieldValueDuplicate"'),
        ({"rule": "self =="}, 'rule: Invalid value: "self ==": compilation failed: '),
        (
            {"rule": "self == old"},
            'rule: Invalid value: "self == old": compilation failed: undeclared reference to \'o',
        ),
    ],
)
def test_what_a_rule_must_be(rule: Any, text: str) -> None:
    assert texts(crd(node("string", rule)))[0].startswith(f"{WHERE}.{text}")


@pytest.mark.parametrize("kind", [{}, {"x-kubernetes-list-type": "set"}])
def test_items_that_cannot_be_told_apart_have_no_old_self(kind: Any) -> None:
    (text,) = texts(crd({"type": "array", "items": node("string", SAME), **kind}))
    why = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {SPEC_PATH}"
    assert text == f'{SPEC_PATH}.items.{RULES}[0].rule: Invalid value: "self == oldSelf": {why}'


ITEM = {"type": "object", "required": ["id"], "properties": {"id": node("string", SAME)}}
LIST = {"type": "array", "items": ITEM, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]}


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (node("string", {"rule": "true", "messageExpression": "'a'"}), "messageExpression"),
        (node("string", {"rule": "true", "fieldPath": ".a"}), "fieldPath"),
        (node("string", {"rule": "true", "optionalOldSelf": True}), "optionalOldSelf"),
        (LIST, "oldSelf in a list of type map"),
    ],
)
def test_what_cannot_be_held_is_refused_not_stored(schema: Any, what: str) -> None:
    with pytest.raises(StatusError, match=what) as caught:
        validate_definition(crd(schema))
    assert caught.value.code == 501
