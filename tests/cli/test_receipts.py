"""`kvsync receipts`: works with nothing but the file, and says no with a code and a status."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from kvsync_protocol.envelope import Envelope
from kvsync_protocol.exactness import SCORER
from kvsync_protocol.receipt import Receipt
from kvsync_protocol.strictjson import MAX_SAFE_INTEGER
from tests.cli.conftest import Command
from tests.protocol.receipts import KEY, STRANGER, make


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    path = tmp_path / "proof.receipt"
    path.write_bytes(make(4).encode())
    return path


def test_check_needs_no_home_and_says_who_signed(kvsync: Command, proof: Path, tmp_path: Path) -> None:
    answer = kvsync("--home", tmp_path / "nowhere", "receipts", "check", proof)
    assert answer.status == 0
    assert f"signed by {KEY.public}" in answer.err
    assert "4 of 4" in answer.out
    told = kvsync("receipts", "check", proof, "--json", "--public-key", KEY.public).json
    assert (told["sound"], told["trusted"], told["summary"]["exact"]) == (True, True, True)
    assert not (tmp_path / "nowhere").exists()


def test_check_runs_where_no_engine_can_be_imported(proof: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'aiohttp', 'numpy', 'safetensors', 'matplotlib'):\n"
        "    sys.modules[name] = None\n"
        "from kvsync.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "receipts", "check", str(proof)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "sound" in done.stdout) == (0, True), done.stderr


def test_a_link_to_a_receipt_may_be_named(kvsync: Command, proof: Path, tmp_path: Path) -> None:
    link, further = tmp_path / "link.receipt", tmp_path / "further.receipt"
    link.symlink_to(proof.name)
    further.symlink_to(link)
    assert kvsync("receipts", "check", further).status == 0
    link.unlink()
    link.symlink_to(further.name)
    answer = kvsync("receipts", "check", link, "--json")
    assert (answer.status, answer.json["error"]["code"]) == (9, "file.unreadable")


def test_samples_that_nobody_here_can_draw_again_are_not_called_sound(kvsync: Command, tmp_path: Path) -> None:
    honest = make(2)
    receipt = Receipt.seal(
        SCORER,
        KEY,
        honest.records,
        run={**honest.header.run, "generator": "mine, chosen by hand"},
        fingerprints=honest.header.fingerprints,
        software="kvsync test",
        time=0,
    )
    path = tmp_path / "chosen.receipt"
    path.write_bytes(receipt.encode())
    answer = kvsync("receipts", "check", path, "--json")
    assert (answer.status, answer.json["error"]["code"]) == (3, "version.generator")


def test_a_time_that_no_calendar_has_can_be_shown(kvsync: Command, tmp_path: Path) -> None:
    receipt = make(2)
    header = dataclasses.replace(receipt.header, time=MAX_SAFE_INTEGER)
    envelope = Envelope.seal(receipt.envelope.payload_type, header.encode(), KEY)
    path = tmp_path / "late.receipt"
    path.write_bytes(dataclasses.replace(receipt, header=header, envelope=envelope).encode())
    for words in (["check"], ["show"]):
        answer = kvsync("receipts", *words, path)
        assert (answer.status, str(MAX_SAFE_INTEGER) in answer.out) == (0, True)


def test_what_is_wrong_has_a_status_and_a_code(kvsync: Command, proof: Path, tmp_path: Path) -> None:
    edited = tmp_path / "edited.receipt"
    edited.write_bytes(proof.read_bytes().replace(b'"equal":true', b'"equal":false', 1))
    cut = tmp_path / "cut.receipt"
    cut.write_bytes(proof.read_bytes()[:-100])
    cases = [
        ((proof, "--public-key", STRANGER.public), 5, "trust.untrusted_signer"),
        ((proof, "--public-key", "nonsense"), 3, "key.syntax"),
        ((edited,), 4, "receipt.root"),
        ((cut,), 3, "receipt.form"),
        ((tmp_path / "none.receipt",), 7, "file.missing"),
        ((tmp_path,), 9, "file.unreadable"),
    ]
    for words, status, code in cases:
        answer = kvsync("receipts", "check", *words, "--json")
        assert (answer.status, answer.code) == (status, code), words
    for command in (("show", edited), ("diff", proof, edited), ("diff", edited, proof)):
        assert kvsync("receipts", *command, "--json").code == "receipt.root"


def test_show_tells_every_record(kvsync: Command, proof: Path) -> None:
    told = kvsync("receipts", "show", proof, "--json").json
    assert [record["index"] for record in told["records"]] == [0, 1, 2, 3]
    answer = kvsync("receipts", "show", proof)
    assert answer.status == 0
    assert sum(line.lstrip().startswith(("0 ", "1 ", "2 ", "3 ")) for line in answer.out.splitlines()) == 4


def test_diff_compares_what_both_have(kvsync: Command, proof: Path, tmp_path: Path) -> None:
    longer = tmp_path / "longer.receipt"
    longer.write_bytes(make(6, STRANGER).encode())
    answer = kvsync("receipts", "diff", proof, longer, "--json")
    assert answer.status == 0
    assert (answer.json["common"], answer.json["only_first"], answer.json["only_second"]) == (4, 0, 2)
    assert kvsync("receipts", "diff", proof, longer).status == 0
