"""Rewrites tried on numbers where they are applied."""

from .trial import Trial as Trial
