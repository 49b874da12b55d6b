"""Built-in kinds: their list, their defaults and their validation rules, and the metadata rules of every kind."""
