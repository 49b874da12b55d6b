"""Table documents: the columns and cells that ``kubectl get`` prints."""
