"""The rules for the texts of a group of new nodes: its name, and Kubernetes' rules for labels, taints and amounts.

The chart has the same rules (``charts/group_rules.py``), so the patterns are in what Python and Go have in common.

Sources: k8s.io/apimachinery ``validation.IsQualifiedName`` and ``IsValidLabelValue``. A taint's key and value follow
the rules of a label's, a resource's name those of a label's key.
"""

import re
from collections.abc import Mapping

from tessera.kube.quantity import parse_quantity
from tessera.text import one_line

#: The name of a group; the names of its placeholders begin with it.
GROUP_PATTERN = "[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?"
#: A label's value, a label's key, and the DNS name before such a key.
NAME_PATTERN = "[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
PREFIX_PATTERN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_GROUP, _NAME, _PREFIX = (re.compile(each) for each in (GROUP_PATTERN, NAME_PATTERN, PREFIX_PATTERN))
PREFIX_LENGTH = 253
#: Characters of a wrong value that a message shows.
_SHOWN = 80

GROUP_RULE = "a name is at most 40 small letters, digits and '-', with a letter or digit at both ends"
_NAME_RULE = "at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
KEY_RULE = f"a key is {_NAME_RULE}; before it, a DNS name and '/' may stand"
VALUE_RULE = f"a value is empty, or {_NAME_RULE}"
AGREEMENT_RULE = "a node has one value for each"
AMOUNT_RULE = "an amount is 0 or more"


def check_name(field: str, name: str) -> None:
    """Checks the name of a group.

    Raises:
        ValueError: names the field, the text and the rule.
    """
    if not _GROUP.fullmatch(name):
        raise ValueError(f"{field}: {_quote(name)}: {GROUP_RULE}")


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
    fits = not slash or (len(prefix) <= PREFIX_LENGTH and _PREFIX.fullmatch(prefix))
    if not fits or not _NAME.fullmatch(name):
        raise ValueError(f"{field}: {_quote(key)}: {KEY_RULE}")


def check_value(field: str, value: str) -> None:
    """Checks a label's or taint's value.

    Raises:
        ValueError: names the field, the text and the rule.
    """
    if value and not _NAME.fullmatch(value):
        raise ValueError(f"{field}: {_quote(value)}: {VALUE_RULE}")


def check_agreement(selector: Mapping[str, str], labels: Mapping[str, str]) -> None:
    """Checks that ``labels`` gives no label of ``selector`` another value.

    Raises:
        ValueError: names the label and both values.
    """
    for key, value in labels.items():
        if selector.get(key, value) != value:
            raise ValueError(f"labels: {key}: {_quote(value)}: selector says {_quote(selector[key])}; {AGREEMENT_RULE}")


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
            raise ValueError(f"{field}: {name}: {_quote(str(amount))}: {AMOUNT_RULE}")


def _quote(text: str) -> str:
    return f'"{one_line(text, _SHOWN)}"'
