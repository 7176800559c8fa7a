"""Brokers and storages of task libraries, over a store: one module for each library.

::

    from mqstore.integrations.dramatiq import MQStoreBroker

`celery` and other users of kombu need the module `kombu`. Each module imports its library, so a program imports only
the module that it uses. The modules use the public interface of mqstore only.
"""
