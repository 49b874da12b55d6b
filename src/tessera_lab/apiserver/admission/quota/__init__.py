"""ResourceQuota: usage of objects, and refusal of writes that exceed a quota."""
