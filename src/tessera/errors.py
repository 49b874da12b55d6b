"""The base of errors that say what a user can do."""


class UserError(Exception):
    """An error whose text names what is wrong and what to do next; a command prints it as one line and ends with 1."""
