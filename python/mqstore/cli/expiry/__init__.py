"""The verbs `expire`, `retention` and `reclaim`."""
