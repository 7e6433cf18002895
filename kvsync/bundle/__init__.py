"""Artifacts in one signed file, for hosts without a network between them: packed here, judged like a pull there.

Knows the store, the codec and the rules for pulls; no network.
"""

from kvsync.bundle.importing import import_bundle
from kvsync.bundle.packing import export_bundle
from kvsync.bundle.report import BundleReport, Moved

__all__ = ["BundleReport", "Moved", "export_bundle", "import_bundle"]
