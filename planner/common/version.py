"""The version of the planner, written into plan files."""

VERSION = "0.1.0"
