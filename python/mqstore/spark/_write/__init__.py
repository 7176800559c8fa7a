"""Writes of the data source: tasks stage their rows in the store's directory, the driver's side appends them once."""
