"""CEL rules of a CRD's schema (``x-kubernetes-validations``): checks them in the definition, applies them to objects.

A rule that names ``oldSelf`` is a transition rule: it applies to an update if the field exists before and after. A
value that an update does not change is not checked again. An object with wrong types, wrong values or missing fields
is not checked by any rule. All this, texts and order are as in kube-apiserver 1.36.

The server refuses to store (501): ``messageExpression``, ``fieldPath``, ``optionalOldSelf``, and transition rules in
lists of type ``map``. It does not check a rule's cost, nor that the schema has the fields that the rule names.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.cel.evaluator import CelError, EvaluationError, Program, compile_expression
from tessera_lab.apiserver import field_errors
from tessera_lab.apiserver.crd.value_validation import NO_FIELD
from tessera_lab.apiserver.field_errors import child
from tessera_lab.apiserver.interfaces import StatusCause
from tessera_lab.apiserver.status import not_implemented_error

Schema = Mapping[str, Any]
Rule = Mapping[str, Any]

RULES, LIST_TYPE = "x-kubernetes-validations", "x-kubernetes-list-type"
VARIABLES = frozenset({"self", "oldSelf"})
UNKNOWN = ("messageExpression", "fieldPath", "optionalOldSelf")
REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")

#: If an object has one of these errors, no rule is applied to it.
BLOCKING = frozenset(
    {
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    }
)
NOT_HELD = field_errors.invalid_cause(
    NO_FIELD,
    None,
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete"
    " validation",
)

#: No value: the field did not exist before, or its old value cannot be found.
_ABSENT = object()


# -- the definition -------------------------------------------------------------------------------------------------


def check_cel_rules(schema: Schema, path: str, uncorrelatable: str = "") -> Iterator[StatusCause]:
    """Yields the errors of the CEL rules at one place of a schema.

    Args:
        schema: the node, whose own rules are checked.
        path: the node's path.
        uncorrelatable: path of the surrounding list whose items cannot be matched between two writes.

    Raises:
        tessera_lab.apiserver.status.StatusError: 501, a rule uses something that this server does not support.
    """
    for index, rule in enumerate(schema.get(RULES) or ()):
        where = f"{path}.{RULES}[{index}]"
        for name in UNKNOWN:
            if rule.get(name):
                raise not_implemented_error(f"{where}.{name}")
        yield from _check_message(rule, where)
        yield from _check_expression(rule, where, uncorrelatable)


def path_below_list(schema: Schema, path: str, uncorrelatable: str) -> str:
    """Returns ``uncorrelatable`` (see :func:`check_cel_rules`) for the items of a list.

    Raises:
        tessera_lab.apiserver.status.StatusError: 501, transition rules in a list of type ``map``.
    """
    if schema.get(LIST_TYPE) != "map":
        return path
    if any(_is_transition(text) for text in _rule_expressions(schema["items"])):
        raise not_implemented_error(f"{path}.items.{RULES} (oldSelf in a list of type map)")
    return uncorrelatable


def _check_message(rule: Rule, where: str) -> Iterator[StatusCause]:
    message = rule.get("message", "")
    if message and not message.strip():
        yield field_errors.invalid_cause(f"{where}.message", message, "must be non-empty if specified")
    elif "\n" in message:
        yield field_errors.invalid_cause(f"{where}.message", message, "must not contain line breaks")
    elif not message and "\n" in rule.get("rule", ""):
        yield field_errors.required_cause(f"{where}.message", "message must be specified if rule contains line breaks")
    if rule.get("reason", REASONS[0]) not in REASONS:
        yield field_errors.unsupported_cause(f"{where}.reason", rule["reason"], REASONS)


def _check_expression(rule: Rule, where: str, uncorrelatable: str) -> Iterator[StatusCause]:
    text = rule.get("rule", "").strip()
    if not text:
        yield field_errors.required_cause(f"{where}.rule", "rule is not specified")
        return
    try:
        compile_expression(text, VARIABLES)
    except CelError as error:
        yield field_errors.invalid_cause(f"{where}.rule", text, f"compilation failed: {error}")
        return
    if uncorrelatable and _is_transition(text):
        reason = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {uncorrelatable}"
        yield field_errors.invalid_cause(f"{where}.rule", text, reason)


def _is_transition(text: str) -> bool:
    """True if a rule that compiles needs ``oldSelf``: without that variable it does not compile."""
    try:
        compile_expression(text, VARIABLES - {"oldSelf"})
    except CelError:
        return True
    return False


def _rule_expressions(schema: Schema) -> Iterator[str]:
    """Yields the rules of a schema and of everything below it."""
    yield from (rule["rule"] for rule in schema.get(RULES) or () if rule.get("rule"))
    below = [schema.get("items"), schema.get("additionalProperties"), *schema.get("properties", {}).values()]
    for each in below:
        if isinstance(each, Mapping):
            yield from _rule_expressions(each)


# -- objects --------------------------------------------------------------------------------------------------------


class CelRules:
    """The rules of one version of a CRD.

    Args:
        schema: its ``openAPIV3Schema``, in which :func:`check_cel_rules` found no errors.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._programs: dict[str, tuple[Program, bool]] = {
            text: (compile_expression(text, VARIABLES), _is_transition(text)) for text in _rule_expressions(schema)
        }

    def validate(
        self, obj: Mapping[str, Any], old: Mapping[str, Any] | None, misfits: Sequence[StatusCause]
    ) -> Sequence[StatusCause]:
        """Yields an error for each rule that the object breaks.

        Args:
            obj: the object.
            old: the object before the update; ``None`` for a new one.
            misfits: other errors of the object.
        """
        if not self._programs:
            return ()
        if any(cause.reason in BLOCKING for cause in misfits):
            return (NOT_HELD,)
        return list(self._validate_value(obj, _ABSENT if old is None else old, self._schema, ""))

    def _validate_value(self, value: Any, old: Any, schema: Schema, path: str) -> Iterator[StatusCause]:
        if value is None or value == old:
            return
        for rule in schema.get(RULES) or ():
            yield from self._evaluate_rule(rule, value, old, schema, path)
        if isinstance(value, dict):
            properties, extra = schema.get("properties", {}), schema.get("additionalProperties")
            for name, below in value.items():
                following = properties.get(name, extra)
                if isinstance(following, Mapping):
                    before = old.get(name, _ABSENT) if isinstance(old, dict) else _ABSENT
                    yield from self._validate_value(below, before, following, child(path, name))
        elif isinstance(value, list) and "items" in schema:
            for index, each in enumerate(value):
                yield from self._validate_value(each, _ABSENT, schema["items"], f"{path}[{index}]")

    def _evaluate_rule(self, rule: Rule, value: Any, old: Any, schema: Schema, path: str) -> Iterator[StatusCause]:
        program, transition = self._programs[rule["rule"]]
        if transition and (old is _ABSENT or old is None):
            return
        try:
            retained = program.is_true({"self": value, "oldSelf": old})
        except EvaluationError as error:
            reason = f"{error} evaluating rule: {rule.get('message') or rule['rule']}"
            yield field_errors.invalid_cause(path or NO_FIELD, schema.get("type"), reason)
            return
        if not retained:
            yield _rule_cause(rule, value, path or NO_FIELD)


def _rule_cause(rule: Rule, value: Any, path: str) -> StatusCause:
    text = rule.get("message", "").strip() or f"failed rule: {rule['rule'].strip()}"
    match rule.get("reason", "FieldValueInvalid"):
        case "FieldValueRequired":
            return field_errors.required_cause(path, text)
        case "FieldValueForbidden":
            return field_errors.forbidden_cause(path, text)
        case "FieldValueDuplicate":
            return field_errors.duplicate_cause(path, value)
    if isinstance(value, (dict, list)):
        return StatusCause(field=path, reason="FieldValueInvalid", message=f"Invalid value: {text}")
    return field_errors.invalid_cause(path, value, text)
