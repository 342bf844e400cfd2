"""Standing by: what an interpreter runs that was started in advance."""
