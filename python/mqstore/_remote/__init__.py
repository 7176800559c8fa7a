"""Stores at URLs: the transport below the native reader, by `obstore` and `fsspec`, and a cache on the local disk."""
