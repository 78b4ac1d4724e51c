"""What the decisions of a plan cost: time, collectives, memory."""
