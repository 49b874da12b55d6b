"""The rules for the texts of node groups that the schema cannot tell in words.

``templates/_node_groups.tpl`` refuses a text with its path, the text and the rule, as :mod:`tessera.api.nodes` does:
the chart makes no ConfigMap that controller and webhook would refuse.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from charts.rules import alternatives
from tessera.api.nodes import node_groups as rules
from tessera.api.nodes.node_groups import GroupKind
from tessera.mig.geometry import GpuModel
from tessera.mig.models import MODELS, WHOLE_MODELS

_NUMBER = r"(?:\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)|-(?:0+(?:\.0*)?|\.0+))"
#: A quantity of :func:`tessera.kube.quantity.parse_quantity` that is not negative.
AMOUNT = rf"{_NUMBER}(?:[eE][+-]?0*(?:[12]?[0-9]|30)|[KMGTPE]i|[numkMGTPE]?)"
_AMOUNT_RULE = f"{rules.AMOUNT_RULE}; write a number, alone or with a suffix, as 100m, 1.5Gi or 2e3"


def tables() -> Mapping[str, Any]:
    """The rules as the template reads them."""
    known = (*MODELS, *WHOLE_MODELS)
    return {
        "name": _rule(rules.GROUP_PATTERN, rules.GROUP_RULE),
        "key": _rule(f"(?:{rules.PREFIX_PATTERN}/)?{rules.NAME_PATTERN}", rules.KEY_RULE),
        "value": _rule(f"(?:{rules.NAME_PATTERN})?", rules.VALUE_RULE),
        "amount": _rule(AMOUNT, _AMOUNT_RULE),
        "models": {
            each.value: _models(list(filter(_has_profiles, known)) if each is GroupKind.SLICES else known, each)
            for each in GroupKind
        },
        "agreement": rules.AGREEMENT_RULE,
        "prefixLength": rules.PREFIX_LENGTH,
    }


def _rule(pattern: str, rule: str) -> Mapping[str, str]:
    return {"pattern": f"^(?:{pattern})$", "rule": rule}


def _models(models: Sequence[GpuModel], kind: GroupKind) -> Mapping[str, str]:
    names = alternatives([name for each in models for name in (each.short_name, *each.other_short_names)])
    known = ", ".join(each.short_name for each in models)
    return _rule(f"(?i:(?:nvidia-)?(?:{names}))", f"the models of kind {kind.value} are {known}")


def _has_profiles(model: GpuModel) -> bool:
    try:
        _ = model.geometry
    except ValueError:
        return False
    return True
