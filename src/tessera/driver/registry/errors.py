"""The ways in which a registry does not give an image. Each is an outcome of its own, with its own remedy."""

from tessera.driver.resolution import Outcome


class RegistryError(Exception):
    """A registry did not give what the request asked for; the text is one sentence without credentials.

    Attributes:
        outcome: the named outcome.
        after: seconds after which the registry accepts the next request, if it said so; else 0.
    """

    outcome = Outcome.UNREACHABLE

    def __init__(self, text: str, *, after: float = 0.0) -> None:
        super().__init__(text)
        self.after = after


class ImageNotFound(RegistryError):  # noqa: N818 - read as "the image is not there"
    """The registry does not have the image, tag or repository (404)."""

    outcome = Outcome.NOT_FOUND


class AccessRefused(RegistryError):  # noqa: N818 - likewise
    """The registry requires other credentials (401, 403)."""

    outcome = Outcome.UNAUTHORIZED


class RegistryUnreachable(RegistryError):  # noqa: N818 - likewise
    """The registry gave no usable answer: none, a late one, 429, 5xx, or one that the API does not allow."""

    outcome = Outcome.UNREACHABLE


class WrongArchitecture(RegistryError):  # noqa: N818 - likewise
    """The registry has the image, but not for this architecture."""

    outcome = Outcome.WRONG_ARCHITECTURE
