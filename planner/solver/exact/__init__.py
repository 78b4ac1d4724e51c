"""Exact methods: enumeration, bucket elimination, components, integer programmes."""
