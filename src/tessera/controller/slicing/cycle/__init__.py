"""The steps of one decision, which the slicer calls: take in, candidates, order, plan, settle, writes."""
