"""What ``tessera why`` answers: one room for what is read, one for each stage at which a pod can be held up."""
