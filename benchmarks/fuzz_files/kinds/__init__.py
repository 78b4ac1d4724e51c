"""Kinds of files, one file each for those that are alike."""
