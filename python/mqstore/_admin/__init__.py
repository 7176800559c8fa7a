"""Work on whole directories of stores: check, repair, rebuild, describe, compact, restore, export and import."""
