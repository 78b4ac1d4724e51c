"""Pipelines that run: a loss cut into stages, their programs, and the process that starts them."""

from ...pipeline.cut.opened_loss import Opened as Opened
from ...pipeline.cut.opened_loss import opened as opened
from .build import build_pipeline as build_pipeline
from .holdings import Pieces as Pieces
from .runtime import Pipeline as Pipeline
from .transfer import split_devices as split_devices
