"""The warning of a plan store that cannot be used."""


class StoreWarning(UserWarning):
    """The plan store cannot be used."""
