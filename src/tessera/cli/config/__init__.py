"""What `tessera config check` says of a file: pure judgement, apart from reading and printing."""
