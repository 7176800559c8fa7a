"""The verbs `archive`, `archive-files`, `archive-verify`, `archive-restore` and `archive-clean`."""
