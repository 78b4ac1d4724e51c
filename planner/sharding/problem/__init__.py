"""Builds the solver's problem of a program on a mesh, and reads choices back."""
