"""Limits on resource claims, and on the CEL expressions in them."""

from tessera.limits import Limit

EXPRESSION_DEPTH = Limit(
    32,
    "brackets",
    "nesting of a CEL expression",
    "kube-apiserver refuses deeper ones too; selectors of devices have 3",
)
EXPRESSION_CHAIN = Limit(
    100,
    "operators or selections",
    "one row of a CEL expression without brackets",
    "longer ones are generated; a list with `in` says the same",
)
VERSION_TEXT = Limit(
    256,
    "characters",
    "a text that CEL's `semver()` reads",
    "an attribute of a device has at most 64",
)
