"""Archives: sealed segments of the log as Parquet files, and back to the same bytes.

::

    <archive>/v1/topic=orders/<first>-<last>-<8 hex digits>.parquet    records of one topic in one range of the log
    <archive>/v1/topic_hash=<begin>_<16 hex digits>/...                the same of a topic with a very long name
    <archive>/v1/_bytes/<first>-<last>-<8 hex digits>.parquet          other bytes, if there are any
    <archive>/v1/_manifest/<20 digits>.json                            the newest one is the archive

`<first>` is the log offset of the range, `<last>` that of its last byte. Objects are never written again. Each manifest
is created by a request that fails if it exists, so of two runs at the same time one publishes its files. The layout is
the same in a folder and at a URL.

The native module has the steps of all verbs. Here are their arguments, their reports, and the reads of a store that
continue in its archive.
"""
