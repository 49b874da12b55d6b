"""Base of the command line: terminal, cluster connection, processes, option types, and groups of commands."""
