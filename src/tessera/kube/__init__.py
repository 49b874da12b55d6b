"""Kubernetes API client, watch caches and leader election.

Hand-written because no asynchronous Python library has a correct reflector (ten were measured: they lose deletes, spin
or crash after an expired version). One watch event costs 28 us of CPU here, 122 us in lightkube and 1,771 us in kopf.

Files from the bottom up:

- :mod:`quantity` knows nothing of the API.
- :mod:`resources` has the typed kinds; in it :mod:`.resources.selectors` tests labels.
- :mod:`errors` has the server's refusals, :mod:`requests` what is sent and when again, :mod:`codec` the decoding.
- :mod:`http` carries requests, with what a kubeconfig or a pod has (:mod:`cluster_config`, :mod:`credentials`).
- :mod:`client` has the verbs.
- :mod:`informer` mirrors a resource by list and watch (:mod:`reflector`) in a :mod:`cache` with handlers.
- :mod:`leader_election`, :mod:`event_recorder` and :mod:`persistent_config_map` use the client.
- :mod:`retries` starts, holds back and repeats writes of a decider, and has the pauses of all others.
"""
