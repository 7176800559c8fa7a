"""Reads of the data source: the driver plans and filters them, the tasks produce the rows."""
