from . import step as step
