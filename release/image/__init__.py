"""The image: what is in it (:mod:`root`), the OCI layout (:mod:`layout`), and its bill of materials (:mod:`sbom`)."""
