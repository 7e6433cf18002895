"""SPEC.md and the code say the same: codes, sections, limits, and the example."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

from kvsync_protocol import routes
from tests.protocol.spec import ROOT, TEXT, error_codes, key_sections, node_codes, sections

PACKAGE = ROOT / "protocol" / "kvsync_protocol"
SOURCES = sorted(PACKAGE.glob("*.py"))
VECTORS = ROOT / "protocol" / "vectors"
READERS_AND_KEEPERS = {"integrity.chunk", "integrity.header", "trust.ref_owner", "trust.rollback"}
"""Codes that the protocol defines and kvsync raises, where chunks are read and refs are kept."""


def raised_codes() -> set[str]:
    """First arguments of every error made in the package; those of `Fields` by family and kind."""
    found: set[str] = set()
    families: set[str] = set()
    closed: set[str] = set()
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        here = set()
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if (name.endswith("Error") or name == "_mismatch") and texts and "." in texts[0]:
                found.add(texts[0])
            if name == "Fields" and texts:
                here.add(texts[-1])
        families |= here
        if ".done()" in path.read_text(encoding="utf-8"):
            closed |= here
    found |= {f"{family}.{kind}" for family in families for kind in ("missing", "type", "range")}
    return found | {f"{family}.unknown" for family in closed}


def test_every_code_that_the_package_raises_stands_in_the_table() -> None:
    assert raised_codes() - error_codes() == set()


def test_every_code_of_the_table_is_raised() -> None:
    assert error_codes() - raised_codes() == READERS_AND_KEEPERS
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "kvsync").rglob("*.py"))
    assert {code for code in node_codes() | READERS_AND_KEEPERS if f'"{code}"' not in sources} == set()


def test_every_section_that_code_and_vectors_refer_to_exists() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "kvsync").rglob("*.py")]
    texts += [path.read_text(encoding="utf-8") for path in (*SOURCES, *VECTORS.glob("*.py"), *VECTORS.glob("*.json"))]
    cited = {number for text in texts for number in re.findall(r"SPEC (\d+(?:\.\d+)?)", text)}
    assert len(cited) > 10
    assert cited <= sections()
    keys = {number for text in texts for number in re.findall(r"KEYS (\d+)", text)}
    assert {"1", "2", "3", "4", "5"} <= keys <= key_sections()


def test_every_route_of_the_package_is_in_the_spec() -> None:
    table = TEXT.split("### 8.1")[1].split("### 8.2")[0].replace("{id}", "{artifact}")
    paths = [value for name, value in vars(routes).items() if name.isupper() and str(value).startswith("/v1/")]
    assert len(paths) == 15
    for path in paths:
        head, _, last = path.removeprefix("/v1").rpartition("/")
        assert path.removeprefix("/v1") in table or (head in table and f" /{last} " in table.replace(",", " "))


def test_every_limit_of_the_package_is_in_the_spec() -> None:
    import kvsync_protocol.limits as limits

    table = TEXT.split("### 1.3")[1].split("## 2 ")[0]
    numbers = {eval_number(text) for text in re.findall(r"2\^\d+|[\d,]+(?: [KM]iB)?", table)}
    apart = {"BLOCK_TOKENS", "LEAF_ENTRY_BYTES", "KiB", "MiB", "GiB"}
    derived = {"MAX_LEAF_TABLE_BYTES", "MAX_TOKEN_BYTES", "MAX_JSON_DEPTH", "MAX_ROLES", "MAX_PROOF_NODES"}
    derived |= {"MAX_DIVERGENCE_BYTES"}
    named = {name: value for name, value in vars(limits).items() if name[0].isupper() and isinstance(value, int)}
    missing = {name for name, value in named.items() if value not in numbers} - apart - derived
    assert missing == set()


def eval_number(text: str) -> int:
    if "^" in text:
        return 1 << int(text.split("^")[1])
    number, _, unit = text.replace(",", "").partition(" ")
    return int(number or 0) * {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]


def test_the_text_stays_short_enough_for_a_context_of_eight_thousand_tokens() -> None:
    assert 12_000 < len(TEXT) < 25_700


def generate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = folder / "vectors" / "generate.py"
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)


def copy(tmp_path: Path) -> Path:
    shutil.copytree(VECTORS, tmp_path / "vectors", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "protocol" / "SPEC.md", tmp_path)
    return tmp_path


def test_vectors_and_example_are_those_that_the_generator_writes() -> None:
    found = generate(ROOT / "protocol", "--check")
    assert (found.returncode, found.stderr) == (0, "")


def test_the_check_notices_a_changed_a_missing_and_a_strange_file(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    spec = folder / "SPEC.md"
    spec.write_text(spec.read_text(encoding="utf-8").replace("block_tokens", "block_token", 3), encoding="utf-8")
    (folder / "vectors" / "bulk.json").unlink()
    (folder / "vectors" / "other.json").write_text("{}")
    table = folder / "vectors" / "digest.json"
    table.write_text(table.read_text().replace('"ok"', '"digest.syntax"', 1))
    found = generate(folder, "--check")
    assert found.returncode == 1
    assert {line.split()[0] for line in found.stderr.splitlines()} >= {"bulk.json", "other.json", "digest.json"}
    assert not (folder / "vectors" / "bulk.json").exists()

    assert generate(folder).returncode == 0
    (folder / "vectors" / "other.json").unlink()
    assert generate(folder, "--check").returncode == 0
