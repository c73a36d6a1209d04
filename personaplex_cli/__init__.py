"""PersonaPlex as a batch converter: folders of recordings in, spoken replies out."""

__version__ = "0.1.0"
