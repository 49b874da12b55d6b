"""``kubectl tessera`` as one file for each platform (:mod:`archives`), and its entry for krew (:mod:`manifest`)."""
