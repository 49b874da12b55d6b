"""Kubernetes' rules for labels, taints and amounts, as a group of new nodes states them.

Sources: k8s.io/apimachinery ``validation.IsQualifiedName`` and ``IsValidLabelValue``. A taint's key and value follow
the rules of a label's, a resource's name those of a label's key.
"""

import re
from collections.abc import Mapping

from tessera.kube.quantity import parse_quantity
from tessera.text import one_line

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_PREFIX_LENGTH = 253
#: Characters of a wrong value that a message shows.
_SHOWN = 80

_NAME_RULE = "at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
_KEY_RULE = f"a key is {_NAME_RULE}; before it, a DNS name and '/' may stand"
_VALUE_RULE = f"a value is empty, or {_NAME_RULE}"


def check_labels(field: str, labels: Mapping[str, str]) -> None:
    """Checks keys and values of labels.

    Raises:
        ValueError: names the field, the text and the rule.
    """
    for key, value in labels.items():
        check_key(field, key)
        check_value(f"{field}: {key}", value)


def check_key(field: str, key: str) -> None:
    """Checks a label's or taint's key, or a resource's name.

    Raises:
        ValueError: names the field, the text and the rule.
    """
    prefix, slash, name = key.rpartition("/")
    fits = not slash or (len(prefix) <= _PREFIX_LENGTH and _PREFIX.fullmatch(prefix))
    if not fits or not _NAME.fullmatch(name):
        raise ValueError(f"{field}: {_quote(key)}: {_KEY_RULE}")


def check_value(field: str, value: str) -> None:
    """Checks a label's or taint's value.

    Raises:
        ValueError: names the field, the text and the rule.
    """
    if value and not _NAME.fullmatch(value):
        raise ValueError(f"{field}: {_quote(value)}: {_VALUE_RULE}")


def check_agreement(selector: Mapping[str, str], labels: Mapping[str, str]) -> None:
    """Checks that ``labels`` gives no label of ``selector`` another value.

    Raises:
        ValueError: names the label and both values.
    """
    for key, value in labels.items():
        if selector.get(key, value) != value:
            raise ValueError(
                f"labels: {key}: {_quote(value)}: selector says {_quote(selector[key])}; a node has one value for each"
            )


def check_amounts(field: str, amounts: Mapping[str, str | int]) -> None:
    """Checks names of resources and their amounts.

    Raises:
        ValueError: names the field, the resource and the rule.
    """
    for name, amount in amounts.items():
        check_key(field, name)
        try:
            value = parse_quantity(str(amount))
        except ValueError as error:
            raise ValueError(f"{field}: {name}: {error}") from None
        if value < 0:
            raise ValueError(f"{field}: {name}: {_quote(str(amount))}: an amount is 0 or more")


def _quote(text: str) -> str:
    return f'"{one_line(text, _SHOWN)}"'
