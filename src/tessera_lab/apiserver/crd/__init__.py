"""CustomResourceDefinitions: rules for a definition, its structural schema, and how it is served."""
