"""Pipelines as one program: stages under one `jax.shard_map`, rounds of a schedule in a scan."""

from .pipeline import ScannedPipeline as ScannedPipeline
from .pipeline import scanned_pipeline as scanned_pipeline
