"""Exports: messages of a store as files of JSON lines, Parquet or Arrow, as another store, or at a URL.

`export.py` has the verb. `run.py` has what all exports share; `file_export.py` and `store_export.py` write the results.

::

    NAME.partial          the file until it is complete; then it gets its name (`partial.py`)
    NAME.partial/         parts, each complete; then the folder gets its name (`parts.py`)
    NAME.partial.state    the position at which a call resumes (`partial.py`; for parts `parts.py`)
    NAME.partial.rules    which records the export contains (`rules.py`)

After a crash or a stop, the same call resumes at the position in the state. A single Parquet or Arrow file, and a
result at a URL, restart from the beginning.
"""
