"""mqstore, RocketMQ's Java store and the machine's own limits, measured in turns in one run."""
