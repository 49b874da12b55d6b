"""Serves HTTP: every port of every process is a :class:`~tessera.serving.bounded_port.ConnectionPort`."""
