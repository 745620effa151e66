"""Durable state: what containers hold, and the journal of how that came about (SQLite)."""
