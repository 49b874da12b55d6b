"""The Kubernetes API: client, reflector, caches, leases. Built to the API's conventions, not to any one server.

From the bytes up: :mod:`transport` is the seam and :mod:`http` its real side (:mod:`config` and :mod:`credentials` say
where and as whom); :mod:`wire` decodes to the kinds in :mod:`resources`; :mod:`client` has the verbs and :mod:`errors`
the refusals; :mod:`cache`, :mod:`reflector` and :mod:`informer` mirror a resource; :mod:`workqueue` works on keys;
:mod:`lease` elects a leader; :mod:`events` tells people. :mod:`selectors`, :mod:`quantity` and :mod:`backoff` stand
alone.
"""
