"""Parts of the stub of the native module, by subject; `_mqstore.pyi` has the rest. None of it exists at run time."""
