"""The front of the compiler: `plan`, `load`, `parallelize`."""
