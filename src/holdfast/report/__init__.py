"""What became of a run: where its time went, what each interruption cost, and one page of it."""
