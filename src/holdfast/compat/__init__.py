"""Other tools' names, with what they promise and without their faults."""
