"""The verbs `logic-queue list`, `cat`, `lag` and `export`."""
