from .trial import Trial as Trial
