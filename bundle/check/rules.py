"""All rules, and the warnings that Tessera's bundle keeps on purpose."""

from collections.abc import Iterator, Mapping

from bundle.check import catalogue_rules, package_rules, version_rules
from bundle.check.problems import Problem, Rule
from bundle.check.reading import Bundle

RULES: tuple[Rule, ...] = (*package_rules.RULES, *version_rules.RULES, *catalogue_rules.RULES)

#: Rules whose warnings are kept, each with the reason.
KEPT: Mapping[Rule, str] = {
    catalogue_rules.made_definitions: (
        "the operator makes NVIDIA's definitions where they are missing: a bundle that owned them could not be"
        " installed beside NVIDIA's operator"
    ),
    catalogue_rules.foreign_rights: (
        "the operator makes the disruption budget of its own webhook, by name; the role tessera-edit is for members of"
        " a team, in their own namespace"
    ),
}


def check(bundle: Bundle) -> Iterator[tuple[Rule, Problem]]:
    """What the rules find in a bundle."""
    for rule in RULES:
        for problem in rule(bundle):
            yield rule, problem
