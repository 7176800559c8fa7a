"""What hands messages to readers and keeps count of it: consumers, work queues, delays, transactions.

`store` has the store's verbs for them, and the other modules have the classes that these verbs answer.
"""
