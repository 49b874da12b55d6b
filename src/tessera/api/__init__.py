"""Typed models of the objects and texts that users, administrators, the controller and the agent exchange.

- :mod:`documents` loads YAML and JSON strictly, and :mod:`problems` collects mistakes in them; :mod:`names` has the
  names of resources, labels and annotations.
- :mod:`instaslice` is the object in which controller and agent agree on slices.
- :mod:`pods` reads requests of pods; :mod:`nodes` reads and writes labels and annotations of nodes.
- :mod:`mig_layouts` and :mod:`sharing` read the files of NVIDIA's mig-parted and device plugin.
- :mod:`operator_fields` knows the fields of NVIDIA's gpu-operator; :mod:`driver` reads ClusterPolicy and NVIDIADriver;
  :mod:`gpu_operator` reads a whole installation of it.
"""
