"""Reads the fields of a ClusterPolicy or NVIDIADriver, and collects mistakes and notices, each with its path.

A mistake is a setting that Tessera cannot carry out; it refuses the object. A notice is about a setting that Tessera
carries out differently, or not at all. :func:`tessera.gpu_operator.keys.check_keys` has checked the keys; this
module checks their values.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tessera.api.problems import FileRefused, Notice, Problem, ProblemCollector, join_path, quote_value
from tessera.gpu_operator.driver_policy import DriverPolicy
from tessera.gpu_operator.without_effect import is_set
from tessera.kube.quantity import parse_quantity
from tessera.kube.resources.meta import OBJECT_NAME
from tessera.kube.resources.selectors import parse_selector
from tessera.limits import Limit

#: Of the texts of a policy.
POLICY_TEXT = Limit(
    1_024,
    "characters",
    "a text in a ClusterPolicy or NVIDIADriver, but for values of environment variables",
    "names, paths and versions are far shorter; they are written into driver pods",
)
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


class ReadPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of an object, with notices.

    Attributes:
        policy: the policy that the object asks for.
        notices: settings without effect, or with another effect than written; sorted by path.
    """

    policy: DriverPolicy
    notices: tuple[Notice, ...] = ()


class FieldReader:
    """Collects mistakes and notices of one object while it is read."""

    def __init__(self) -> None:
        self.found = ProblemCollector()
        self.notices: list[Notice] = []

    def add_problem(self, path: str, text: str) -> None:
        """Adds a mistake."""
        self.found.add(path, text)

    def add_notice(self, path: str, text: str) -> None:
        """Adds a notice for the author."""
        self.notices.append(Notice(path, text))

    def finish(self, policy: DriverPolicy) -> ReadPolicy:
        """Ends the reading.

        Raises:
            FileRefused: there was a mistake.
        """
        self.found.raise_problems()
        return ReadPolicy(policy=policy, notices=tuple(sorted(set(self.notices))))

    def set_aside(self, mattering: tuple[str, ...]) -> None:
        """Turns mistakes below none of these paths into notices."""
        for problem in self.found.problems:
            if not concerns_drivers(problem, mattering):
                self.add_notice(problem.path, f"no effect: {problem.text}")
        self.found.problems = [each for each in self.found.problems if concerns_drivers(each, mattering)]

    def without_effect(self, fields: Mapping[str, Any], path: str, reasons: Mapping[str, str]) -> None:
        """Adds a notice for each of the keys that is set."""
        for key, reason in reasons.items():
            if is_set(fields.get(key)):
                self.add_notice(join_path(path, key), f"no effect: {reason}")

    # Values

    def text(self, fields: Mapping[str, Any], key: str, path: str) -> str:
        """Returns a text of bounded length; empty if the key is missing."""
        value = fields.get(key, "")
        found = self.found.text(value, join_path(path, key))
        if len(found) > POLICY_TEXT:
            self.add_problem(join_path(path, key), f"has {len(found):,} characters; {POLICY_TEXT} are allowed")
            return ""
        return found

    def name(self, fields: Mapping[str, Any], key: str, path: str) -> str:
        """Returns the name of a ConfigMap, Secret or class; empty if the key is missing."""
        value = fields.get(key, "")
        return "" if value == "" else self._name(value, join_path(path, key))

    def names(self, fields: Mapping[str, Any], key: str, path: str) -> tuple[str, ...]:
        """Returns a list of names of objects."""
        return tuple(self._name(item, at) for item, at in self.found.items(fields.get(key), join_path(path, key)))

    def _name(self, value: Any, path: str) -> str:
        if isinstance(value, str) and OBJECT_NAME.fullmatch(value):
            return value
        rule = "write lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
        self.add_problem(path, f"{quote_value(value)} is no name of an object: {rule}")
        return ""

    def boolean(self, fields: Mapping[str, Any], key: str, path: str, *, otherwise: bool = False) -> bool:
        """Returns true or false."""
        value = fields.get(key)
        return otherwise if value is None else self.found.boolean(value, join_path(path, key))

    def integer(self, fields: Mapping[str, Any], key: str, path: str, otherwise: int, *, least: int = 0) -> int:
        """Returns a whole number of at least ``least`` that fits a Kubernetes int32."""
        value = fields.get(key)
        if value is None:
            return otherwise
        found = self.found.integer(value, join_path(path, key), least)
        if found is not None and found >= 2**31:
            self.add_problem(join_path(path, key), f"must be less than {2**31}, not {quote_value(value)}")
            return otherwise
        return otherwise if found is None else found

    def texts(self, fields: Mapping[str, Any], key: str, path: str) -> tuple[str, ...]:
        """Returns a list of texts."""
        return tuple(self.found.text(item, at) for item, at in self.found.items(fields.get(key), join_path(path, key)))

    def labels(self, fields: Mapping[str, Any], key: str, path: str) -> dict[str, str]:
        """Returns a mapping of texts to texts."""
        at = join_path(path, key)
        return {
            name: self.found.text(value, join_path(at, name))
            for name, value in self.found.free_mapping(fields.get(key), at).items()
        }

    def selector(self, fields: Mapping[str, Any], key: str, path: str) -> str:
        """Returns a label selector in kubectl's syntax; empty if the key is missing."""
        found = self.text(fields, key, path)
        try:
            parse_selector(found)
        except ValueError as error:
            self.add_problem(join_path(path, key), str(error))
        return found

    def objects(self, fields: Mapping[str, Any], key: str, path: str) -> tuple[Mapping[str, Any], ...]:
        """Returns a list of Kubernetes objects, unchanged; the API server checks them where they are used."""
        items = self.found.items(fields.get(key), join_path(path, key))
        return tuple(self.found.free_mapping(item, at) for item, at in items)

    def resources(self, fields: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Returns requests and limits of a container."""
        at = join_path(path, "resources")
        found = self.found.mapping(fields.get("resources"), at, ("limits", "requests", "claims"))
        for part in ("limits", "requests"):
            for name, amount in self.found.free_mapping(found.get(part), join_path(at, part)).items():
                self._quantity(amount, join_path(join_path(at, part), name))
        return found

    def _quantity(self, amount: Any, path: str) -> None:
        if isinstance(amount, bool) or not isinstance(amount, int | float | str):
            self.add_problem(path, f"must be an amount such as 500m or 2Gi, not {quote_value(amount)}")
            return
        try:
            parse_quantity(str(amount))
        except ValueError:
            self.add_problem(path, f"{quote_value(amount)} is no amount; write one such as 500m or 2Gi")

    def environment(self, value: Any, path: str) -> tuple[Mapping[str, Any], ...]:
        """Returns environment variables unchanged, each with a name; other code notes mistakes in them.

        :func:`~tessera.gpu_operator.keys.check_keys` has checked the list and keeps only names and values.
        """
        return tuple(self._variables(value, path))

    def _variables(self, value: Any, path: str) -> Iterator[Mapping[str, Any]]:
        for number, item in enumerate(value if isinstance(value, list) else ()):
            name = item.get("name") if isinstance(item, Mapping) else None
            if isinstance(name, str) and not _ENV_NAME.fullmatch(name):
                self.add_problem(f"{path}[{number}].name", f"{quote_value(name)} is no name of an environment variable")
            elif isinstance(name, str):
                yield dict(item)

    def values_of(self, variables: Mapping[str, str], raw: Any, path: str) -> dict[str, str]:
        """Returns environment variables by name, for a part whose variables have only values."""
        for number, item in enumerate(raw if isinstance(raw, list) else ()):
            if isinstance(item, Mapping) and item.get("valueFrom"):
                self.add_notice(f"{path}[{number}].valueFrom", "no effect: only values are handed on")
        return dict(variables)


def concerns_drivers(problem: Problem, paths: tuple[str, ...]) -> bool:
    """True if a mistake lies at one of the paths, below it, or above all of them."""
    return any(problem.path == each or problem.path.startswith((f"{each}.", f"{each}[")) for each in paths)


def identity(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns ``metadata`` of an object.

    Raises:
        FileRefused: it has none, or no name.
    """
    metadata = obj.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
        raise FileRefused([Problem("metadata.name", "missing; every object has a name")])
    return metadata
