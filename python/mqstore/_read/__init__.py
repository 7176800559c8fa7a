"""Reads of many messages: scans, their Polars frames, SQL filters, and tables of the newest values."""
