"""Why a measurement could not be made."""


class BenchError(Exception):
    """The bench cannot go on; the text says what to do."""
