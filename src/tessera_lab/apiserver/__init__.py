"""The lab's API server: Kubernetes' API conventions in one process.

Folders from bottom to top; an import only points down (import-linter checks it):

* files in this folder: interfaces, Status errors, field errors, resource types, audit log;
* :mod:`storage` objects, watches and selectors; :mod:`tables` the columns of ``kubectl get``;
* :mod:`schemas` shapes of built-in kinds;
* :mod:`request` one request and the server's state; :mod:`patch` JSON patch, strategic merge, server-side apply;
* :mod:`pods` and :mod:`kinds` defaults and rules of built-in kinds; :mod:`crd` custom resources;
* :mod:`authz` identities and RBAC; :mod:`admission` plugins, policies, webhooks, quota; :mod:`validation`;
* :mod:`discovery` discovery and OpenAPI documents; :mod:`handlers` the verbs; :mod:`main` the whole server.
"""
