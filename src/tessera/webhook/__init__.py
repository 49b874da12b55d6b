"""Admission: gates pods that ask for a dynamic slice. Stateless."""
