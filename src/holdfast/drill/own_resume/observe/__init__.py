"""Observe: what a drilled program is made to import, in its own interpreter."""
