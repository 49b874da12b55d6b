"""What a kind does with an object on its way in, beyond what every kind does.

One :class:`Strategy` per kind, pure functions over JSON values; the verbs call them in the order of the attributes.
Kinds without one get the plain behaviour: ``status`` only through its subresource, everything else as sent.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.interfaces import Cause, Obj

Read = Mapping[str, Any]


def _nothing(obj: Obj) -> None:
    del obj


def _no_cause(obj: Read) -> Sequence[Cause]:
    del obj
    return ()


def _no_update_cause(obj: Read, old: Read) -> Sequence[Cause]:
    del obj, old
    return ()


def _no_update(obj: Obj, old: Read) -> None:
    del obj, old


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """Hooks of one kind.

    Attributes:
        default: fills in defaults, on every write but those of the status subresource.
        default_status: the same for the status subresource.
        prepare_create: sets what a new object of the kind starts with; ``status`` is empty already.
        prepare_update: restores what an update of the main resource must not touch, besides ``status``.
        validate, validate_update, validate_status: what is wrong; an update is checked by both of the first.
        prepare_delete: changes the state in which a dying object stays.
        unconditional: whether an update may leave the resourceVersion out.
        returns_deleted: an immediate delete answers with the object, not with a Status.
    """

    default: Callable[[Obj], None] = _nothing
    default_status: Callable[[Obj], None] = _nothing
    prepare_create: Callable[[Obj], None] = _nothing
    prepare_update: Callable[[Obj, Read], None] = _no_update
    validate: Callable[[Read], Sequence[Cause]] = _no_cause
    validate_update: Callable[[Read, Read], Sequence[Cause]] = _no_update_cause
    validate_status: Callable[[Read, Read], Sequence[Cause]] = _no_update_cause
    prepare_delete: Callable[[Obj], None] = _nothing
    unconditional: bool = True
    returns_deleted: bool = False
