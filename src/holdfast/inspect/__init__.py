"""Looks into checkpoints without the frameworks that wrote them: shows, compares and exports their content."""
