"""Names in the objects of ``resource.k8s.io``, and the size limits of their lists. Pure.

Source of rules, texts and limits: ``pkg/apis/resource/{types.go,validation}`` of Kubernetes 1.36; the limits and texts
that a real server 1.36.2 gave.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from tessera_lab.apiserver.field_errors import (
    SUBDOMAIN,
    SUBDOMAIN_RULE,
    duplicate_cause,
    invalid_cause,
    label_causes,
    required_cause,
    too_long_cause,
    too_many_cause,
)
from tessera_lab.apiserver.interfaces import StatusCause

Check = Callable[[Any, str], Iterator[StatusCause]]

#: Longest name of a driver and of an attribute's domain (``DeviceMaxDomainLength``), a label and an identifier.
DRIVER_LENGTH, LABEL_LENGTH, IDENTIFIER_LENGTH, SUBDOMAIN_LENGTH = 63, 63, 32, 253

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IDENTIFIER_RULE = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    "or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
)


def check_label(name: Any, path: str) -> Iterator[StatusCause]:
    """Yields the errors of the name of a device, request or counter."""
    text = str(name or "")
    if len(text) > LABEL_LENGTH:
        yield invalid_cause(path, text, f"must be no more than {LABEL_LENGTH} characters")
    yield from label_causes(path, text)


def check_subdomain(name: str, path: str) -> Iterator[StatusCause]:
    """Yields the errors of the name of an object or a node."""
    if len(name) > SUBDOMAIN_LENGTH:
        yield invalid_cause(path, name, f"must be no more than {SUBDOMAIN_LENGTH} characters")
    if not SUBDOMAIN.fullmatch(name):
        yield invalid_cause(path, name, SUBDOMAIN_RULE)


def check_driver(name: Any, path: str) -> Iterator[StatusCause]:
    """Yields the errors of a driver's name."""
    text = str(name or "")
    if not text:
        yield required_cause(path)
        return
    if len(text) > DRIVER_LENGTH:
        yield too_long_cause(path, DRIVER_LENGTH)
    yield from check_subdomain(text.lower(), path)


def check_pool(name: Any, path: str) -> Iterator[StatusCause]:
    """Yields the errors of a pool's name: subdomains, separated by slashes."""
    text = str(name or "")
    if not text:
        yield required_cause(path)
        return
    if len(text) > SUBDOMAIN_LENGTH:
        yield too_long_cause(path, SUBDOMAIN_LENGTH)
    for part in text.split("/"):
        yield from check_subdomain(part, path)


def check_qualified(name: str, path: str) -> Iterator[StatusCause]:
    """Yields the errors of the name of an attribute or a capacity: an identifier, with or without a domain."""
    domain, slash, identifier = name.rpartition("/")
    if "/" in domain:
        yield invalid_cause(path, name, "must not contain more than one slash")
        return
    if slash and not domain:
        yield invalid_cause(path, "", "the domain must not be empty")
    elif slash:
        yield from check_driver(domain, path)
    if slash and not identifier:
        yield invalid_cause(path, "", "the name must not be empty")
        return
    if len(identifier) > IDENTIFIER_LENGTH:
        yield too_long_cause(path, IDENTIFIER_LENGTH)
    if not _IDENTIFIER.fullmatch(identifier):
        yield invalid_cause(path, identifier, _IDENTIFIER_RULE)


def check_fully_qualified(name: str, path: str) -> Iterator[StatusCause]:
    """Yields the errors of an attribute's name that must have its domain."""
    yield from check_qualified(name, path)
    if "/" not in name:
        yield invalid_cause(path, name, "a fully qualified name must be a domain and a name separated by a slash")


def check_list(
    items: Sequence[Any] | None,
    path: str,
    check: Check,
    *,
    limit: int | None = None,
    key: Callable[[Any], Hashable] | None = None,
) -> Iterator[StatusCause]:
    """Yields the errors of a list: too many entries and nothing else, or those of its entries and second ones.

    Args:
        items: the list; None for an absent one.
        path: its path.
        check: yields the errors of one entry.
        limit: most entries that it may have.
        key: what must be unique in the list.
    """
    found = items or ()
    if limit is not None and len(found) > limit:
        yield too_many_cause(path, len(found), limit)
        return
    for index, each in enumerate(found):
        yield from check(each, f"{path}[{index}]")
    seen: set[Hashable] = set()
    for index, each in enumerate(found) if key else ():
        value = key(each)  # type: ignore[misc]
        if value in seen:
            yield duplicate_cause(f"{path}[{index}]", value)
        seen.add(value)
