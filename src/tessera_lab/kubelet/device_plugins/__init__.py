"""Kubelet's side of its APIs for device plugins and drivers of claims, for the simulated kubelet and for tests.

:mod:`plugin_client` calls a plugin, and has the protocols that a simulated kubelet implements; :mod:`grpc_servers`
serves them on unix sockets. :mod:`claim_client` finds and calls drivers of claims. :mod:`inprocess` joins agent and
kubelet without sockets.
"""
