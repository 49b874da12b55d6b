"""The verdict that a pod must not be created."""


class Refused(Exception):  # noqa: N818 - a verdict, not a fault
    """The pod must not be created; the text is shown to its author."""
