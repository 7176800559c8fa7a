"""Reads over many messages: scans with their frames of Polars, filters in SQL, tables of the latest values."""
