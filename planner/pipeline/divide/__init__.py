"""Divides the slots of a loss into stages, on devices of a cluster."""
