"""Network policies: defaults and rules. Pure; ``pkg/apis/networking/{v1,validation}``. The lab enforces none."""

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera_lab.apiserver import field_errors
from tessera_lab.apiserver.field_errors import forbidden_cause, invalid_cause
from tessera_lab.apiserver.interfaces import Obj, StatusCause

Read = Mapping[str, Any]

_TYPES = ("Ingress", "Egress")
#: Rule lists of a policy: direction, and the field with its peers.
_RULES = (("ingress", "from"), ("egress", "to"))
_CIDR_RULE = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
_PORT_RULE = "must be between 1 and 65535, inclusive"
_PORT_NAME_MOST = 15


def default_network_policy(policy: Obj) -> None:
    """Sets the default ``policyTypes``: Ingress, and Egress if the policy has egress rules."""
    spec = policy.setdefault("spec", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = list(_TYPES) if spec.get("egress") else ["Ingress"]


def validate_network_policy(policy: Read) -> Sequence[StatusCause]:
    """Returns the errors of a NetworkPolicy."""
    return list(_spec(policy.get("spec") or {}))


def _spec(spec: Read) -> Iterator[StatusCause]:
    for direction, peers in _RULES:
        for index, rule in enumerate(spec.get(direction) or ()):
            path = f"spec.{direction}[{index}]"
            for number, port in enumerate(rule.get("ports") or ()):
                yield from _port(port, f"{path}.ports[{number}]")
            for number, peer in enumerate(rule.get(peers) or ()):
                yield from _peer(peer, f"{path}.{peers}[{number}]")
    types = spec.get("policyTypes") or ()
    if len(types) > len(_TYPES):
        yield invalid_cause("spec.policyTypes", types, "may not specify more than two policyTypes")
        return
    for index, each in enumerate(types):
        if each not in _TYPES:
            yield field_errors.unsupported_cause(f"spec.policyTypes[{index}]", each, _TYPES)


def _port(port: Read, path: str) -> Iterator[StatusCause]:
    first, last = port.get("port"), port.get("endPort")
    if isinstance(first, str):
        if last is not None:
            yield invalid_cause(f"{path}.endPort", last, "may not be specified when `port` is non-numeric")
        yield from (invalid_cause(f"{path}.port", first, reason) for reason in _name_flaws(first))
        return
    if first is None:
        if last is not None:
            yield invalid_cause(f"{path}.endPort", last, "may not be specified when `port` is not specified")
        return
    if not 0 < first < 65536:
        yield invalid_cause(f"{path}.port", first, _PORT_RULE)
    if last is not None and last < first:
        yield invalid_cause(f"{path}.endPort", last, "must be greater than or equal to `port`")
    if last is not None and not 0 < last < 65536:
        yield invalid_cause(f"{path}.endPort", last, _PORT_RULE)


def _name_flaws(name: str) -> Iterator[str]:
    """Yields the errors of a port's name."""
    if len(name) > _PORT_NAME_MOST:
        yield f"must be no more than {_PORT_NAME_MOST} characters"
    if not re.fullmatch(r"[-a-z0-9]+", name):
        yield "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
    if not re.search(r"[a-z]", name):
        yield "must contain at least one letter (a-z)"
    if "--" in name:
        yield "must not contain consecutive hyphens"
    if name.startswith("-") or name.endswith("-"):
        yield "must not begin or end with a hyphen"


def _peer(peer: Read, path: str) -> Iterator[StatusCause]:
    named = [key for key in ("podSelector", "namespaceSelector", "ipBlock") if peer.get(key) is not None]
    if "ipBlock" in named:
        yield from _block(peer["ipBlock"], f"{path}.ipBlock")
    if not named:
        yield field_errors.required_cause(path, "must specify a peer")
    elif len(named) > 1 and "ipBlock" in named:
        yield forbidden_cause(path, "may not specify both ipBlock and another peer")


def _block(block: Read, path: str) -> Iterator[StatusCause]:
    text = block.get("cidr") or ""
    if not text:
        yield field_errors.required_cause(f"{path}.cidr")
        return
    whole = _network(text)
    if whole is None:
        yield invalid_cause(f"{path}.cidr", text, _CIDR_RULE)
        return
    for index, each in enumerate(block.get("except") or ()):
        part = _network(each)
        if part is None:
            yield invalid_cause(f"{path}.except[{index}]", each, _CIDR_RULE)
        elif not _within(part, whole):
            yield invalid_cause(f"{path}.except[{index}]", each, "must be a strict subset of `cidr`")


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _network(text: str) -> _Network | None:
    if not text.rpartition("/")[2].isdigit() or "/" not in text:
        return None
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _within(part: _Network, whole: _Network) -> bool:
    same = part.version == whole.version
    return same and part.prefixlen > whole.prefixlen and part.network_address in whole
