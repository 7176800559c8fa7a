"""Verbs on the retention of single topics."""
