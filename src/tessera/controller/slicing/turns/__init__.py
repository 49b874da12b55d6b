"""One turn of the slicer: plan, verdicts, the writes that are due, and what became of them."""
