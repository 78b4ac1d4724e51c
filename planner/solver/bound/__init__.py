"""Lower bounds: message passing, coordinate descent, memory multipliers."""
