"""The schema registry of the tests: the properties that tests of formats rely on."""

from __future__ import annotations

import json
from urllib.error import URLError

import pytest

from kit.registry_server import Refused, RegistryServer


def schema_of(**fields: object) -> str:
    """Return an Avro schema of a record with these fields and types."""
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "row", "fields": listed})


def test_a_schema_is_found_by_its_id(registry: RegistryServer) -> None:
    """An equal schema has one id; an unknown id is answered with 404."""
    first = registry.register("found", schema_of(a="long"))

    assert registry.register("found", schema_of(a="long")) == first
    found = registry.ask(f"/schemas/ids/{first}")["schema"]
    assert json.loads(str(found)) == json.loads(schema_of(a="long"))
    with pytest.raises(Refused) as caught:
        registry.ask("/schemas/ids/9999")
    assert caught.value.code == 404


def test_an_incompatible_schema_is_refused(registry: RegistryServer) -> None:
    """A new field without a default cannot read older messages; one without fields can."""
    registry.register("strict", schema_of(a="long"))

    with pytest.raises(Refused) as caught:
        registry.register("strict", schema_of(a="long", b="long"))

    assert caught.value.code == 409
    assert registry.register("strict", schema_of()) > 0


def test_a_wiped_registry_forgets_and_a_killed_one_does_not(registry: RegistryServer) -> None:
    """After `wipe` the first id belongs to another schema, so that ids alone prove nothing."""
    registry.wipe()
    first = registry.register("s", schema_of(a="long"))
    registry.kill()
    with pytest.raises(URLError):
        registry.ask("/subjects/s/versions/1")
    registry.start()
    assert registry.ask("/subjects/s/versions/1")["id"] == first

    registry.wipe()

    with pytest.raises(Refused) as caught:
        registry.ask(f"/schemas/ids/{first}")
    assert caught.value.code == 404
    assert registry.register("other", schema_of(z="string")) == first
