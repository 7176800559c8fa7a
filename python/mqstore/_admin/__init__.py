"""Verbs on whole directories: check, repair, rebuild, describe, compact, restore, export and import."""
