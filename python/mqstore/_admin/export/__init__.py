"""Exports: messages of a store as files of JSON lines, Parquet or Arrow, as another store, or at a URL."""
