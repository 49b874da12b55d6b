"""The authorizer of an admission policy's expressions: may the sender of this request also do something else?

``authorizer.group(G).resource(R).name(N).check(VERB).allowed()`` (Kubernetes, "Common Expression Language in
Kubernetes", Authorizer library). A namespace can be named too. Paths, subresources and service accounts are not
supported; a call of those does not compile.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.cel.kubernetes_values import EvaluationError, type_name
from tessera_lab.apiserver.interfaces import Attributes, AuthorizationDecision, Authorizer, UserInfo


class _Everything:
    """Allows everything: the server has no authorizer."""

    def authorize(self, attributes: Attributes) -> AuthorizationDecision:
        del attributes
        return AuthorizationDecision(allowed=True)


class Asker(msgspec.Struct, frozen=True):
    """The variable ``authorizer``.

    Attributes:
        user: the sender of the request.
        authorizer: the server's; None allows everything.
    """

    user: UserInfo
    authorizer: Authorizer | None = None

    def group(self, name: str) -> "GroupQuestion":
        """Returns a question about an API group."""
        return GroupQuestion(self, name)


class GroupQuestion(msgspec.Struct, frozen=True):
    """A question about a group, whose resource is not yet named."""

    asker: Asker
    name: str

    def resource(self, plural: str) -> "ResourceQuestion":
        """Returns a question about a resource."""
        return ResourceQuestion(Attributes(user=self.asker.user, verb="", group=self.name, resource=plural), self.asker)


class ResourceQuestion(msgspec.Struct, frozen=True):
    """A question about a resource, whose verb is not yet named."""

    attributes: Attributes
    asker: Asker

    def namespace(self, name: str) -> "ResourceQuestion":
        """Returns this question about one namespace."""
        return self._with(namespace=name)

    def name(self, name: str) -> "ResourceQuestion":
        """Returns this question about one object."""
        return self._with(name=name)

    def check(self, verb: str) -> "Decision":
        """Returns the answer for a verb."""
        authorizer = self.asker.authorizer or _Everything()
        return Decision(authorizer.authorize(self._with(verb=verb).attributes).allowed)

    def _with(self, **changes: str) -> "ResourceQuestion":
        return ResourceQuestion(msgspec.structs.replace(self.attributes, **changes), self.asker)


class Decision(msgspec.Struct, frozen=True):
    """The answer."""

    is_allowed: bool

    def allowed(self) -> bool:
        """True if the sender may do it."""
        return self.is_allowed


def _method(kind: type, name: str) -> Callable[..., Any]:
    def call(target: Any, *args: Any) -> Any:
        if not isinstance(target, kind) or not all(isinstance(each, str) for each in args):
            raise EvaluationError(f"no such overload: a question of {type_name(target)}")
        return getattr(target, name)(*args)

    return call


_KINDS = {"group": Asker, "resource": GroupQuestion, "allowed": Decision} | dict.fromkeys(
    ("namespace", "name", "check"), ResourceQuestion
)
#: Functions of a target for CEL, with the allowed numbers of their arguments.
AUTHORIZER_METHODS: Mapping[str, tuple[Sequence[int], Callable[..., Any]]] = {
    name: ((0,) if name == "allowed" else (1,), _method(kind, name)) for name, kind in _KINDS.items()
}
