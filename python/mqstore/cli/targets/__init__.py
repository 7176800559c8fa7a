"""The verbs on folders and URLs outside a store: archives, backups and results."""
