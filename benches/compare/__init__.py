"""mqstore beside RocketMQ's Java store and the machine's own limits, in turns, in one run."""
