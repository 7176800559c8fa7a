"""The verbs `cat`, `tail`, `get` and `lookup`."""
