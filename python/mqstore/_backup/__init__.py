"""Streaming backups: the log and the metadata of a store as objects in a folder or at a URL, and back.

::

    <backup>/backup-v1/states/<20 digits>.json          what the backup contains; the newest complete one is the backup
    <backup>/backup-v1/pieces/<64 hex>-<8 hex>.zst      a part of a file: the SHA-256 of its bytes, and a random number

Objects are never written again. Each state is created by a request that fails if it exists, so of two processes that
back up to one target, one notices the other. The native module has the steps of all verbs. Here are their arguments,
their reports, and the thread of a backup that continues.
"""
