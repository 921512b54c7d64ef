"""Load: from a model's name to a `LoadedModel`, refusing anything missing, extra, damaged or not understood."""

from fuseboard.load.model import LoadedModel, load_model

__all__ = ["LoadedModel", "load_model"]
