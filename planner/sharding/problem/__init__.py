"""From a program on a mesh to a problem of arrays, and back."""
