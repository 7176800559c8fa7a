"""Reads of the data source: planned by the driver, filtered, and made into rows by the tasks."""
