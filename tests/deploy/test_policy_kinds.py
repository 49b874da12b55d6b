"""Expressions of ``deploy/policies`` for several kinds are left to run time.

A real control plane compares each validation and variable with every kind of the policy's rules, and writes a warning
into the status where one of them has no such field. ``dyn()`` turns that off.
"""

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from tests.deploy.conftest import ROOT

POLICIES = sorted((ROOT / "deploy" / "policies").glob("*.yaml"), key=lambda path: path.name)
#: Subresources whose objects are of the kind of their resource; others, like pods/binding, have a kind of their own.
OF_THE_SAME_KIND = {"", "status", "ephemeralcontainers", "resize"}
#: A field that not every kind has, read with its type.
TYPED = re.compile(r"\b(?:object|oldObject)\.(?!metadata\b)")


def kinds(policy: Mapping[str, Any]) -> set[str]:
    """The resources, or subresources of another kind, that the rules of a policy name."""
    found: set[str] = set()
    for rule in policy["spec"]["matchConstraints"]["resourceRules"]:
        for resource in rule["resources"]:
            base, _, below = resource.partition("/")
            found.add(base if below in OF_THE_SAME_KIND else resource)
    return found


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_an_expression_for_several_kinds_reads_fields_without_their_types(path: Any) -> None:
    policy = next(yaml.load_all(path.read_text(), yaml.CSafeLoader))
    if len(kinds(policy)) == 1:
        return
    expressions = [*policy["spec"]["validations"], *policy["spec"].get("variables", ())]
    assert [each["expression"] for each in expressions if TYPED.search(each["expression"])] == []
