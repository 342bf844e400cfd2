"""Streams: batches from files, made at any place of an order that a seed decides."""
