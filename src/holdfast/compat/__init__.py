"""The names of other tools, with their documented behaviour and without their faults."""
