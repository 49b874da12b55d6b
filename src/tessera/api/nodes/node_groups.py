"""Node groups whose nodes do not exist yet: ``groups.yaml`` in the ConfigMap ``tessera-node-groups``.

An autoscaler knows the shape of a new node, but not what MIG slices fit on it. Here the administrator says which cards
a new node of a group has, and by which labels it is found::

    groups:
      - name: a100
        selector: {node.kubernetes.io/instance-type: p4d.24xlarge}
        cards: {model: A100-40GB, count: 8}
      - name: l40s
        selector: {pool: l40s}
        cards: {model: L40S, count: 4, kind: whole}

The file is read strictly: an unknown key, a model without a table of profiles, or a label that no node can have refuses
the whole file, so that no group is left out unseen.

The chart has the same rules for the texts of a group (``charts/group_rules.py``), so the patterns are in what Python
and Go have in common.

Sources: k8s.io/apimachinery ``validation.IsQualifiedName`` and ``IsValidLabelValue``. A taint's key and value follow
the rules of a label's, a resource's name those of a label's key.

A :class:`Pause` follows new nodes that came for a pod and did not help: it has the words of the pod's event, and reads
them again.

The controller writes the event. ``tessera why`` repeats it, ``tessera autoscaler advise`` counts such pods, and a new
leader reads it, so that a restart ends no pause. An API server keeps an event for an hour; the controller records it
again before that.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from tessera.api.documents import convert_document
from tessera.api.names import NODE_GROUPS_KEY, NODE_GROUPS_MAP, SHARED_CARDS, WHOLE_CARDS
from tessera.clock import parse_time_or_zero, rfc3339
from tessera.kube.quantity import integer_value, milli_value, parse_quantity
from tessera.kube.resources import Taint
from tessera.limits import NODE_CARDS, NODE_DEVICES, QUANTITY, SHARING_REPLICAS
from tessera.mig.geometry import Geometry
from tessera.mig.models import model_by_short_name
from tessera.text import one_line

#: Reason of the event.
NO_HELP_REASON = "NewNodeOfNoUse"
#: Seconds of the first pause: Cluster Autoscaler's own after a node that did not come
#: (``--initial-node-group-backoff-duration``).
FIRST_PAUSE = 300.0
#: Seconds of the longest pause: a node a day may show that the cloud has other machines now.
LONGEST_PAUSE = 86_400.0

_TEXT = re.compile(r"no new node of group (\S+) is asked for before (\S+), as none has helped since (\S+): (.*)")


class Pause(msgspec.Struct, frozen=True):
    """A time in which no new node of a group is asked for, for one kind of requests.

    Attributes:
        since: when the first new node was of no use, seconds since 1970.
        until: when the next may be asked for.
        why: the last such node, and what keeps the pods off it.
    """

    since: float
    until: float
    why: str


def next_pause(before: Pause | None, now: float, why: str) -> Pause:
    """Returns the pause after a further node of no use: as long as the search has lasted, so it about doubles."""
    since = now if before is None else before.since
    return Pause(since, now + min(LONGEST_PAUSE, max(FIRST_PAUSE, now - since)), why)


def pause_text(group: str, pause: Pause) -> str:
    """Returns the event's text."""
    return (
        f"no new node of group {group} is asked for before {rfc3339(pause.until)}, as none has helped since"
        f" {rfc3339(pause.since)}: {pause.why}; other requests of the pod, or a change of the ConfigMap"
        f" {NODE_GROUPS_MAP}, end the pause"
    )


def read_pause(text: str, now: float) -> tuple[str, Pause] | None:
    """Returns group and pause of an event's text; None for any other text, and for a pause that nobody may set."""
    found = _TEXT.match(text)
    if found is None:
        return None
    group, until, since = found[1], parse_time_or_zero(found[2]), parse_time_or_zero(found[3])
    if not 0 < since <= now or until > now + LONGEST_PAUSE:
        return None
    return group, Pause(since, until, found[4].partition("; other requests of the pod")[0])


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


#: Most groups of new nodes in the ConfigMap tessera-node-groups. Clusters have a few kinds of GPU nodes; each waiting
#: pod is compared with each group.
NODE_GROUPS = 50
#: Most nodes: new nodes of a group that Tessera asks an autoscaler for at a time. An autoscaler's own limits are lower;
#: each is an object in Tessera's namespace.
GROUP_NODES = 100

#: Characters of the text about a mistake in a group: a field with a label's key, a value and a rule.
_MISTAKE = 800
#: Reason of the event on a pod for which a new node was asked for.
NEW_NODE_REASON = "NewNodeRequested"

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=317)]
_Amount = Annotated[str, msgspec.Meta(max_length=int(QUANTITY))] | int
_Labels = Annotated[dict[_Text, Annotated[str, msgspec.Meta(max_length=63)]], msgspec.Meta(max_length=64)]


class GroupKind(StrEnum):
    """What a new node offers of its cards."""

    SLICES = "slices"
    WHOLE = "whole"
    SHARES = "shares"


class GroupCards(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cards of one node.

    Attributes:
        model: a model's short name.
        count: their number.
        kind: what the node offers.
        replicas: shares of one card.
    """

    model: _Text
    count: Annotated[int, msgspec.Meta(ge=1, le=int(NODE_CARDS))] = 1
    kind: GroupKind = GroupKind.SLICES
    replicas: Annotated[int, msgspec.Meta(ge=1, le=int(SHARING_REPLICAS))] = 1


class GroupTaint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A taint that nodes of the group keep."""

    key: _Text
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group.

    Attributes:
        name: its name, as messages and placeholders show it.
        selector: labels that the autoscaler gives a new node; they identify the group's nodes.
        cards: the cards of one node.
        labels: further labels that nodes get later, for pods that select by them.
        taints: taints that nodes keep; startup taints do not belong here.
        allocatable: what pods may hold on a new node of other resources, ``cpu: 90``; what is left out is not compared.
        most: nodes that are asked for at a time.
    """

    name: _Text
    selector: Annotated[_Labels, msgspec.Meta(min_length=1)]
    cards: GroupCards
    labels: _Labels = {}
    taints: Annotated[tuple[GroupTaint, ...], msgspec.Meta(max_length=16)] = ()
    allocatable: Annotated[dict[_Text, _Amount], msgspec.Meta(max_length=16)] = {}
    most: Annotated[int, msgspec.Meta(ge=1, le=int(GROUP_NODES))] = msgspec.field(name="max", default=10)

    @property
    def geometry(self) -> Geometry:
        """The table of profiles of one card, of a group whose nodes offer slices.

        Raises:
            ValueError: the model has none.
        """
        return model_by_short_name(self.cards.model).geometry

    @property
    def devices(self) -> tuple[str, int] | None:
        """The resource and the number of a node's whole cards or shares; None for a group whose nodes offer slices."""
        match self.cards.kind:
            case GroupKind.WHOLE:
                return WHOLE_CARDS, self.cards.count
            case GroupKind.SHARES:
                return SHARED_CARDS, min(self.cards.count * self.cards.replicas, int(NODE_DEVICES))
            case GroupKind.SLICES:
                return None

    def all_labels(self) -> Mapping[str, str]:
        """Returns the labels of a node that has started."""
        return {**self.labels, **self.selector}

    def kept_taints(self) -> tuple[Taint, ...]:
        """Returns the taints as a Node has them."""
        return tuple(Taint(key=each.key, value=each.value, effect=each.effect) for each in self.taints)

    def amounts(self) -> dict[str, int]:
        """Returns ``allocatable`` in integer units, CPU in thousandths."""
        return {
            name: milli_value(str(text)) if name == "cpu" else integer_value(str(text))
            for name, text in self.allocatable.items()
        }


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    groups: Annotated[tuple[NodeGroup, ...], msgspec.Meta(max_length=int(NODE_GROUPS))] = ()


def parse_node_groups(
    text: str, where: str = f"ConfigMap {NODE_GROUPS_MAP}: {NODE_GROUPS_KEY}"
) -> tuple[NodeGroup, ...]:
    """Reads the file.

    Args:
        text: its content.
        where: its name in messages.

    Raises:
        ValueError: the text names group, field and rule.
    """
    found = convert_document(text, _File, where)
    names = [group.name for group in found.groups]
    for group in found.groups:
        if names.count(group.name) > 1:
            raise ValueError(f'{where}: two groups are named "{group.name}"; names must differ')
        try:
            _check_cards(group)
            _check_metadata(group)
        except ValueError as error:
            raise ValueError(f'{where}: group "{group.name}": {one_line(error, _MISTAKE)}; correct the file') from None
    return found.groups


def _check_cards(group: NodeGroup) -> None:
    """Checks model, kind and replicas.

    Raises:
        ValueError: they do not fit together.
    """
    if group.devices is None:
        _ = group.geometry
    model_by_short_name(group.cards.model)
    if (group.cards.replicas > 1) != (group.cards.kind is GroupKind.SHARES):
        raise ValueError(
            f"cards: kind {group.cards.kind.value} with replicas {group.cards.replicas}: replicas of 2 or more are"
            " stated for kind shares, and for no other"
        )


def _check_metadata(group: NodeGroup) -> None:
    """Checks that a Node can have the labels, taints and amounts.

    Raises:
        ValueError: it cannot.
    """
    check_name("name", group.name)
    check_labels("selector", group.selector)
    check_labels("labels", group.labels)
    check_agreement(group.selector, group.labels)
    for number, taint in enumerate(group.taints):
        check_key(f"taints[{number}].key", taint.key)
        check_value(f"taints[{number}].value", taint.value)
    check_amounts("allocatable", group.allocatable)
