"""Driver image lookup: resolver, persistent cache, repeated lookups and pull failures."""
