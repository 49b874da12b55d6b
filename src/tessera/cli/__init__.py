"""The command line: ``main``, a file or folder for each family of commands, and what they share in ``base``."""
