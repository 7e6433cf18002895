"""Models by name: a small catalogue, how to fetch its entries, and where they lie. Importing this loads no torch."""

from kvsync.models.catalog import CATALOG, CatalogModel
from kvsync.models.fetch import FetchedModel, fetch
from kvsync.models.shelf import ModelEntry, list_models, resolve

__all__ = ["CATALOG", "CatalogModel", "FetchedModel", "ModelEntry", "fetch", "list_models", "resolve"]
