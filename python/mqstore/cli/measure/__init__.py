"""The verb `bench`: rates of a store and of its disk, and the causes of delays."""
