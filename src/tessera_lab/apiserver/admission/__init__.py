"""Admission of writes: built-in plugins, webhooks, policies and quota, in the order of kube-apiserver."""
