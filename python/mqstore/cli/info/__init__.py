"""The verbs `info`, `topics`, `stats` and `config show`."""
