"""The plan of one program: its problem, its costs, the search over meshes, rewrites."""
