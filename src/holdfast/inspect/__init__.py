"""Contents of a checkpoint, read without the frameworks that wrote it:
compared with another, or exported.
"""
