"""The seam between the page's server and those who look at it.

:class:`OwnRights` is the page on a laptop: whoever reaches it is its user, whose kubeconfig has limited what was read.
:mod:`tessera.dashboard.access.token_gate` is the page in the cluster.
"""

from typing import Protocol

from tessera.visibility import FULL, Visibility


class LoginNeededError(Exception):
    """The visitor has no token, or one that the API server does not accept; the text says which."""


class NotNowError(Exception):
    """The visitor cannot be judged now: too many are, or the API server does not answer.

    Attributes:
        code: the HTTP status, 429 or 503.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Visitor(Protocol):
    """One who looks at the page.

    Attributes:
        name: the user's name.
        key: the same for all connections that count as one user's.
        readers: the most feeds that they may have open.
    """

    @property
    def name(self) -> str:
        """See the class."""
        ...

    @property
    def key(self) -> str:
        """See the class."""
        ...

    @property
    def readers(self) -> int:
        """See the class."""
        ...

    async def visibility(self) -> Visibility:
        """What the visitor may see now.

        Raises:
            LoginNeededError: the token is not valid any more.
            NotNowError: the token could not be judged.
        """
        ...


class Gate(Protocol):
    """Lets visitors in."""

    async def admit(self, authorization: str | None, address: str) -> Visitor:
        """The visitor who sends this header ``Authorization`` from this address.

        Raises:
            LoginNeededError: there is no valid token, and the page needs one.
            NotNowError: the token could not be judged.
        """
        ...


class _Owner:
    """The user of the kubeconfig."""

    def __init__(self, readers: int) -> None:
        self.name = self.key = ""
        self.readers = readers

    async def visibility(self) -> Visibility:
        return FULL


class OwnRights:
    """Takes everybody for the user of the kubeconfig.

    Args:
        readers: the most feeds that may be open.
    """

    def __init__(self, readers: int) -> None:
        self._owner = _Owner(readers)

    async def admit(self, authorization: str | None, address: str) -> Visitor:
        """The user."""
        del authorization, address
        return self._owner
