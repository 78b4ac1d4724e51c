"""The search over meshes, and the hand-written plans on them."""
