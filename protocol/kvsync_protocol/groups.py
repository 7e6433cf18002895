"""A group of any kind: layers with keys and values, or layers with a state of fixed size (SPEC 3.2)."""

from __future__ import annotations

from kvsync_protocol.group import Group, LayerKind
from kvsync_protocol.state import StateGroup
from kvsync_protocol.strictjson import Fields

AnyGroup = Group | StateGroup


def parse_group(value: object) -> AnyGroup:
    """Read a group of a manifest; the reverse of its `as_json`.

    Raises:
        MalformedError: `manifest.*`, `layout.*`.
        VersionError: `version.layer_kind`, `version.dtype`.
    """
    fields = Fields(value, "manifest")
    kind = LayerKind.parse(fields)
    return StateGroup.read(fields) if kind is LayerKind.RECURRENT else Group.read(kind, fields)
