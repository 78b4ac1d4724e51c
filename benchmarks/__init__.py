"""Measurements behind the claims in README and docs; nothing here is a test."""
