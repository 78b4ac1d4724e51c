"""The tests of meshwright; `tests/<package>/test_<file>.py` mirrors the source."""
