"""The ways in which a registry does not give an image; each is an outcome of its own and asks for another hand."""

from tessera.driver.resolution import Outcome


class RegistryError(Exception):
    """A registry did not give what was asked for; the text is one sentence and has no credentials in it.

    Attributes:
        outcome: which of the named outcomes it is.
        after: seconds after which the registry wants to be asked again, where it said so; else 0.
    """

    outcome = Outcome.UNREACHABLE

    def __init__(self, text: str, *, after: float = 0.0) -> None:
        super().__init__(text)
        self.after = after


class ImageNotFound(RegistryError):  # noqa: N818 - read as "the image is not there"
    """The registry says that it has no such image, tag or repository (404)."""

    outcome = Outcome.NOT_FOUND


class AccessRefused(RegistryError):  # noqa: N818 - likewise
    """The registry wants other credentials than it was given (401, 403)."""

    outcome = Outcome.UNAUTHORIZED


class RegistryUnreachable(RegistryError):  # noqa: N818 - likewise
    """The registry gives no usable answer now: none at all, too late, 429, 5xx, or none that the API allows."""

    outcome = Outcome.UNREACHABLE


class WrongArchitecture(RegistryError):  # noqa: N818 - likewise
    """The image is there, but not for the architecture."""

    outcome = Outcome.WRONG_ARCHITECTURE
