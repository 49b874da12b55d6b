"""Typed models of the objects and texts that users, administrators, the controller and the agent exchange.

- :mod:`documents` loads YAML and JSON strictly, and :mod:`problems` collects mistakes in them; :mod:`names` has the
  names of resources, labels and annotations.
- :mod:`instaslice` is the object in which controller and agent agree on slices.
- :mod:`slice_requests` and :mod:`pod_annotations` read what a pod asks for, :mod:`resource_advice` what it asks for in
  vain, and :mod:`pod_templates` finds the pods of an object; :mod:`nodes` reads and writes labels and annotations of
  nodes.
- :mod:`mig_layouts` and :mod:`sharing` read the files of NVIDIA's mig-parted and device plugin.
"""
