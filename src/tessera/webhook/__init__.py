"""Admission: gates pods that ask for a slice, charges them to the quota, refuses pods that cannot work."""
