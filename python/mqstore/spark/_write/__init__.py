"""Writes of the data source: tasks stage their rows beside the store, and the driver's side appends them once."""
