"""Dimensions whose sizes do not divide, padded so that they can be split."""
