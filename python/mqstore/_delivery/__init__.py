"""Consumers, work queues, delayed messages and transactions.

Module `store` has the verbs of the store, the other modules have the classes that these verbs return.
"""
