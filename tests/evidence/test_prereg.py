"""Preregistrations: two homes, separate processes; what was committed to is found again, or said to be otherwise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kvsync.config import Home
from kvsync.errors import StoreError
from kvsync.evidence.sequence import next_sequence, note
from kvsync.keys import NodeKeys
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import TrustError
from kvsync_protocol.prereg import PREREG_SCORER
from kvsync_protocol.receipt import Receipt
from kvsync_protocol.scorers import SCORERS
from tests.engines.tiny_models import FAMILIES, save_letters, save_model
from tests.evidence.conftest import Program, Said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prereg")


@pytest.fixture(scope="module")
def registered(program: Program, homes: tuple[Path, Path], letters_model: Path, folder: Path) -> Said:
    words = ["--model", letters_model, "--samples", 3, "--dtype", "fp32", "--out", folder / "prereg.receipt"]
    return program("prereg", "create", *words, home=homes[0])


@pytest.fixture(scope="module")
def signer(homes: tuple[Path, Path]) -> str:
    return str(NodeKeys.load(Home(homes[0])).signer.public)


def test_another_home_finds_what_was_registered(
    program: Program, homes: tuple[Path, Path], letters_model: Path, folder: Path, registered: Said, signer: str
) -> None:
    assert (registered.status, registered.json["run"]["sequence"]) == (0, 1)
    words = ["--model", letters_model, "--public-key", signer, "--out", folder / "replay.receipt"]
    said = program("prereg", "replay", folder / "prereg.receipt", *words, home=homes[1])
    assert (said.status, said.json["match"], said.json["matches"]) == (0, True, [True] * 3)
    receipt = Receipt.parse((folder / "replay.receipt").read_bytes(), SCORERS)
    assert receipt.header.run["prereg"] == registered.json["receipt"]
    assert receipt.header.signer == NodeKeys.load(Home(homes[1])).signer.public
    diff = program("receipts", "diff", folder / "prereg.receipt", folder / "replay.receipt", home=homes[1])
    assert (diff.status, diff.json["agree"], diff.json["common"], diff.json["fields"]) == (0, True, 3, [])


def test_only_a_known_signer_s_preregistration_is_replayed(
    program: Program, homes: tuple[Path, Path], letters_model: Path, folder: Path, registered: Said
) -> None:
    said = program("prereg", "replay", folder / "prereg.receipt", "--model", letters_model, home=homes[1])
    assert (said.status, said.code) == (5, "trust.untrusted_signer")


def test_other_weights_are_refused(
    program: Program, homes: tuple[Path, Path], folder: Path, registered: Said, signer: str
) -> None:
    model = save_model(folder / "tiny-llama", FAMILIES["llama"](), seed=1)
    save_letters(model)
    words = ["--model", model, "--public-key", signer]
    said = program("prereg", "replay", folder / "prereg.receipt", *words, home=homes[1])
    assert (said.status, said.code) == (6, "mismatch.compatibility")
    assert said.json["error"]["fields"]["differing"] == ["weights"]


def _altered(source: Path, target: Path, home: Path, change: Any) -> Path:
    """The preregistration as its own signer might have written it."""
    prereg = Receipt.parse(source.read_bytes(), SCORERS)
    records = json.loads(json.dumps(list(prereg.records)))
    run = dict(prereg.header.run)
    change(run, records)
    told = {"fingerprints": prereg.header.fingerprints, "software": "test", "time": 1}
    key = NodeKeys.load(Home(home)).signer
    target.write_bytes(Receipt.seal(PREREG_SCORER, key, records, run=run, **told).encode())  # type: ignore[arg-type]
    return target


def test_a_record_that_is_not_found_again_is_named(
    program: Program, homes: tuple[Path, Path], letters_model: Path, folder: Path, registered: Said, signer: str
) -> None:
    def change(run: dict[str, Any], records: list[dict[str, Any]]) -> None:
        run["sequence"] = 7
        records[1]["canonical"]["decode"] = str(sha256(b"other"))

    other = _altered(folder / "prereg.receipt", folder / "other.receipt", homes[0], change)
    words = ["--model", letters_model, "--public-key", signer, "--out", folder / "mismatch.receipt"]
    said = program("prereg", "replay", other, *words, home=homes[1])
    assert (said.status, said.json["matches"]) == (6, [True, False, True])
    assert said.json["summary"] == {"samples": 3, "matches": 2, "exact": False}
    checked = program("receipts", "check", folder / "mismatch.receipt", home=homes[1])
    assert (checked.status, checked.json["summary"]["exact"]) == (0, False)
    diff = program("receipts", "diff", folder / "prereg.receipt", other, home=homes[1])
    assert (diff.status, [each["outputs"] for each in diff.json["differing"]]) == (6, [["decode"]])


def test_inputs_that_do_not_follow_from_the_settings_are_refused(
    program: Program, homes: tuple[Path, Path], letters_model: Path, folder: Path, registered: Said, signer: str
) -> None:
    def change(run: dict[str, Any], records: list[dict[str, Any]]) -> None:
        run["sequence"] = 8
        records[0]["tokens"] = str(sha256(b"other"))

    other = _altered(folder / "prereg.receipt", folder / "inputs.receipt", homes[0], change)
    said = program("prereg", "replay", other, "--model", letters_model, "--public-key", signer, home=homes[1])
    assert (said.status, said.code) == (6, "mismatch.inputs")


def test_a_receipt_that_is_no_preregistration_cannot_be_replayed(
    program: Program, homes: tuple[Path, Path], letters_model: Path, folder: Path, registered: Said, tmp_path: Path
) -> None:
    from tests.protocol.receipts import KEY, make

    path = tmp_path / "proof.receipt"
    path.write_bytes(make().encode())
    said = program("prereg", "replay", path, "--public-key", KEY.public, home=homes[1])
    assert (said.status, said.code) == (2, "prereg.kind")


def test_numbers_grow_and_are_never_given_twice(homes: tuple[Path, Path], tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    shutil.copytree(homes[0], home.root)
    home.prereg_file.unlink(missing_ok=True)
    assert [next_sequence(home) for _ in range(3)] == [1, 2, 3]
    key = NodeKeys.load(home).signer.public
    note(home, key, 5, sha256(b"first"))
    note(home, key, 5, sha256(b"first"))
    with pytest.raises(TrustError) as caught:
        note(home, key, 5, sha256(b"second"))
    assert caught.value.code == "prereg.sequence"
    assert next_sequence(home) == 4
    home.prereg_file.write_text("{}")
    with pytest.raises(StoreError) as damaged:
        next_sequence(home)
    assert damaged.value.code == "prereg.damaged"
