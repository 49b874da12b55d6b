"""Which cards and MIG devices may be given out: errors and probes in, verdicts out."""
