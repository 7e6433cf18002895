"""`kvsync prove`, in full, on a small model; and the ways in which it ends early."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from kvsync.engines import load_engine
from kvsync.engines.transformers.logits import TensorLogits
from kvsync.errors import EngineError, NotFoundError, UsageError
from kvsync.evidence import measure
from kvsync.evidence.configuration import Configuration, check_environment
from kvsync.evidence.plot import Point, bars, points, save_png
from kvsync.evidence.processes import run_step
from kvsync.evidence.samples import DECODE_STEPS, GENERATOR, draw, token_pool
from kvsync.progress import silent
from kvsync_protocol import figure
from kvsync_protocol.digest import sha256
from kvsync_protocol.exactness import PATHS
from kvsync_protocol.receipt import Receipt
from kvsync_protocol.sample import Outputs, Settings
from kvsync_protocol.scorers import SCORERS
from tests.evidence.conftest import Program, Said


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proof") / "proof.receipt"


@pytest.fixture(scope="module")
def proved(program: Program, homes: tuple[Path, Path], letters_model: Path, proof: Path) -> Said:
    words = ["--model", letters_model, "--samples", 4, "--references", 3, "--out", proof]
    return program("prove", *words, "--plot", proof.with_suffix(".png"), home=homes[0])


def test_every_graft_is_exact_and_nothing_else_is(proved: Said, proof: Path) -> None:
    assert proved.status == 0
    assert proved.json["exact"] is True
    receipt = Receipt.parse(proof.read_bytes(), SCORERS)
    summary = receipt.header.summary
    assert proved.json["summary"] == summary
    assert summary["modes"] == {"whole": 3, "prefix": 1}
    paths = {name: (path["equal"], path["max_abs"]) for name, path in summary["paths"].items()}
    assert paths == dict.fromkeys(PATHS, (4, "0"))
    found = summary["references"]
    assert found["shift_4096"]["refused"] == 3  # the model has 1,024 positions
    for name in ("one_shot", "uncut", "shift_1", "shift_7", "shift_256"):
        assert found[name]["samples"] >= 1, name
        assert found[name]["equal"] == 0, name
        assert 0 < figure.read(found[name]["max_abs"]) < 0.05, name
        assert found[name]["argmax"] == found[name]["positions"], name


def test_the_receipt_says_under_which_fingerprints_and_names_no_path(
    proved: Said, proof: Path, letters_model: Path
) -> None:
    receipt = Receipt.parse(proof.read_bytes(), SCORERS)
    prints = receipt.header.fingerprints
    assert {"weights", "tokenizer", "config"} <= set(prints.compatibility.fields)
    assert prints.numerics.fields["threads"] == "1"
    assert prints.numerics.fields["dtype"] == "F32"
    assert receipt.header.run["model"] == "tiny-llama"
    assert str(letters_model.parent) not in proof.read_text() + receipt.header.encode().decode()
    digests = [record["canonical"]["logits"] for record in receipt.records]  # type: ignore[index]
    assert len(set(digests)) == len(digests)


def test_table_and_plot_show_own_position_at_zero(proved: Said, proof: Path) -> None:
    found = points(proved.json["summary"])
    lines = bars(found)
    assert [line.rpartition("|")[2] for line in lines if "own position" in line] == ["0", "0", "0"]
    assert all("█" in line for line in lines if "own position" not in line)
    assert proof.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_of_equal_points_alone_can_be_drawn(proved: Said, tmp_path: Path) -> None:
    only = [point for point in points(proved.json["summary"]) if point.exact_expected]
    save_png(only, "equal", tmp_path / "equal.png")
    assert (tmp_path / "equal.png").stat().st_size > 1000
    assert len(bars(only)) == 3


def test_agreement_is_never_rounded_up() -> None:
    point = Point("one_shot", False, 1, 0, 0, positions=30_000, argmax=29_999, kl_max=1.0, max_abs=1.0)
    assert point.agreement == "99.99 %"
    assert dataclasses.replace(point, argmax=30_000).agreement == "100 %"
    assert dataclasses.replace(point, positions=0, argmax=0).agreement == "-"


def test_an_environment_that_lets_results_vary_is_refused_by_name(
    program: Program, homes: tuple[Path, Path], letters_model: Path
) -> None:
    said = program("prove", "--model", letters_model, home=homes[0], OMP_DYNAMIC="true")
    assert (said.status, said.code) == (2, "prove.nondeterministic")
    assert said.json["error"]["fields"] == {"flag": "OMP_DYNAMIC"}
    check_environment({"OMP_DYNAMIC": "FALSE"})
    with pytest.raises(UsageError, match="OMP_DYNAMIC=1"):
        check_environment({"OMP_DYNAMIC": "1"})


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("--engine", "abacus"), 10, "engine.unknown"),
        (("--samples", "1000000"), 2, "samples.count"),
        (("--attention", "flash"), 2, "usage.arguments"),
        (("--out", "no/such/folder/x.receipt"), 2, "receipt.folder"),
        (("--out", "/"), 2, "receipt.folder"),
        (("--out", ""), 2, "receipt.folder"),
        (("--model", "no-such-model"), 7, "model.unknown"),
    ],
)
def test_bad_input_is_one_clear_error(
    program: Program, homes: tuple[Path, Path], letters_model: Path, words: tuple[str, ...], status: int, code: str
) -> None:
    said = program("prove", "--model", letters_model, *words, home=homes[0])
    assert (said.status, said.code) == (status, code)


def test_a_stack_that_does_not_repeat_itself_is_noticed(letters_model: Path) -> None:
    engine = load_engine(letters_model, threads=1)
    pool = token_pool(engine)
    (sample,) = draw(Settings("m", GENERATOR, 1, 1, engine.max_tokens, DECODE_STEPS))
    found = measure.fresh(engine, sample, pool)
    assert measure.repeatable(engine, sample, pool, found.outputs).outputs == found.outputs
    other = dataclasses.replace(found.outputs, logits=sha256(b"other"))
    with pytest.raises(EngineError) as caught:
        measure.repeatable(engine, sample, pool, other)
    assert caught.value.code == "prove.not_repeatable"
    assert any(line.startswith("determinism=") for line in caught.value.fields["numerics"])  # type: ignore[union-attr]


def test_a_graft_of_other_bytes_is_counted_as_unequal_with_its_figures(letters_model: Path) -> None:
    engine = load_engine(letters_model, threads=1)
    pool = token_pool(engine)
    (sample,) = draw(Settings("m", GENERATOR, 1, 1, engine.max_tokens, DECODE_STEPS))
    canonical = measure.fresh(engine, sample, pool)
    logits = engine.one_shot(sample.sequence(pool), keep=sample.new)
    other = measure.Measured(logits, Outputs(logits.sha256(), canonical.outputs.decode, canonical.outputs.decoded))
    result = measure.compared(canonical, other)
    assert not result.equal
    assert result.drift.max_abs > 0
    assert result.drift.kl > 0
    result.drift.check(0, sample.new, equal=False)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_numbers_are_never_called_close(value: float) -> None:
    rows = torch.zeros(2, 5)
    canonical, other = TensorLogits(rows), TensorLogits(rows.clone())
    other.tensor[1, 3] = value
    assert not math.isfinite(canonical.kl(other))
    assert not math.isfinite(canonical.max_abs(other))
    for one, two in ((canonical, other), (other, canonical)):
        with pytest.raises(EngineError) as caught:
            measure.drift(one, two)
        assert caught.value.code == "prove.not_finite"
    assert measure.drift(other, TensorLogits(other.tensor.clone())).max_abs == 0  # equal bytes are equal


def test_an_error_of_a_step_is_the_same_error_here(tmp_path: Path) -> None:
    configuration = Configuration(model="m", model_dir=tmp_path / "none")
    with pytest.raises(NotFoundError) as caught:
        list(run_step("kvsync.evidence.child", "compute", configuration.params(), silent))
    assert (caught.value.code, caught.value.hint) == ("model.missing", "kvsync model ls")


def test_a_step_that_dies_is_an_error_and_not_an_empty_result() -> None:
    with pytest.raises(Exception, match="step nonsense ended with status 1"):
        list(run_step("kvsync.evidence.child", "nonsense", {}, silent))
