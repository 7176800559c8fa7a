"""Interoperability tests: mqstore against the real RocketMQ store library, broker and client."""
