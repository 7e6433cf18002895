"""The main job: compute on A, pull to B, push to C, graft on B in a fresh process, refuse what is wrong."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvsync.config import Home, Settings
from kvsync.demo.node import DemoNode
from kvsync.demo.result import DemoResult, OneShot, Pair
from kvsync.demo.tamper import chunk_file, flipped_byte
from kvsync.errors import NotFoundError
from kvsync.evidence.processes import run_step
from kvsync.keys import TrustList
from kvsync.progress import Progress, silent
from kvsync.store import Store
from kvsync.sync import pull
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.errors import CodedError
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints

NAME = "demo/document"
DOCUMENT_CHARS = 20_000
"""Of the specification: more than 3,000 tokens of any model, and not more than a small one has positions for."""
QUESTION = "\n\nQ: What names a chunk?\nA:"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`model` is a directory, `document` a text; None takes the first sections of the specification."""

    model: Path
    model_name: str
    dtype: str
    device: str = "cpu"
    document: str | None = None
    question: str = QUESTION
    keep: bool = False


def run_demo(options: DemoOptions, progress: Progress = silent) -> DemoResult:
    """Run every step on real processes; three daemons are started and stopped.

    Raises:
        CodedError: whatever a step that must succeed ran into.
    """
    with _workspace(keep=options.keep) as root, ExitStack() as stack:
        document = root / "document.txt"
        text = options.document or first_sections(specification().read_bytes().decode(), DOCUMENT_CHARS)
        document.write_bytes(text.encode())
        params = {
            "model": str(options.model),
            "dtype": options.dtype,
            "device": options.device,
            "document": str(document),
            "question": options.question,
        }
        a, b, c = (DemoNode(name, root / name, Settings()) for name in "abc")
        for node in (c, a, b):
            node.start()
            stack.callback(node.stop)
        for receiver in (b, c):
            receiver.trust(a)
        a.meet(b, roles=("get",))
        b.meet(a)
        a.meet(c)
        c.meet(a, roles=("push",))

        compute = {"model": params["model"], "dtype": options.dtype, "device": options.device, "name": NAME}
        computed = _job(a, "compute", {**compute, "text": text}, progress)
        ours = _child("fingerprints", b.home, params)
        pulled = _job(b, "pull", {"peer": "a", "wanted": NAME, "fingerprints": ours}, progress)
        artifact = str(computed["artifact"])
        pushed = _job(a, "push", {"peer": "c", "artifact": artifact}, progress)

        progress("fresh", 0, 1, "steps")
        fresh = _child("fresh", b.home, params)
        progress("fresh", 1, 1, "steps")
        grafted = _child("graft", b.home, params)
        refused = _child("tamper", b.home, {**params, "artifact": artifact})
        refusals = dict(refused["refusals"])
        refusals |= _refused_pulls(root, a, artifact, refused["other_fingerprints"])
        with Store.open(c.home.store_dir) as store:
            store.artifact(ArtifactId(Digest.parse(artifact)))
        report = grafted["report"]
        return DemoResult(
            model=options.model_name,
            dtype=options.dtype,
            artifact=artifact,
            document_tokens=grafted["document_tokens"],
            question_tokens=grafted["question_tokens"],
            tokens_grafted=report["tokens_grafted"],
            tokens_recomputed=report["tokens_recomputed"],
            artifact_bytes=int(computed["bytes"]),
            chunks=report["chunks"],
            compute_tokens_s=float(computed["tokens_per_s"]),
            pull_mb_s=float(pulled["mb_per_s"]),
            push_mb_s=float(pushed["mb_per_s"]),
            ttft_fresh_s=fresh["ttft"],
            ttft_graft_s=grafted["ttft"],
            graft_seconds=report["seconds"],
            logits_sha256=Pair(fresh["logits"], grafted["logits"]),
            decode_sha256=Pair(fresh["decode"], grafted["decode"]),
            one_shot=OneShot(**fresh["one_shot"]),
            answer=grafted["answer"],
            checks=tuple(report["checks"]),
            refusals=refusals,
            live_cache_untouched=bool(refused["untouched"]) and refused["control"] == "accepted",
            nodes={node.name: f"{node.address} {node.keys.peer.public}" for node in (a, b, c)},
            kept=str(root) if options.keep else None,
        )


def specification() -> Path:
    """SPEC.md as it is installed, or as it lies beside the package in a checkout."""
    package = Path(str(files("kvsync_protocol")))
    for path in (package / "SPEC.md", package.parent / "SPEC.md"):
        if path.exists():
            return path
    raise NotFoundError("file.missing", "the specification is not installed", hint="name a text with --doc")


def first_sections(text: str, limit: int) -> str:
    """Whole sections from the start of a markdown text, as many as `limit` characters hold."""
    cut = text.rfind("\n## ", 0, limit + 1)
    return text if len(text) <= limit or cut < 0 else text[: cut + 1]


@contextmanager
def _workspace(*, keep: bool) -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="kvsync-demo-"))
    try:
        yield root
    except CodedError as error:
        # What the hint names, a daemon's log for example, must still be there when it is read.
        keep = keep or str(root) in error.hint
        raise
    finally:
        if not keep:
            shutil.rmtree(root)


def _job(node: DemoNode, kind: str, params: dict[str, Any], progress: Progress) -> dict[str, Any]:
    return node.client.wait(node.client.submit(kind, params), progress)


def _child(step: str, home: Home, params: dict[str, Any]) -> dict[str, Any]:
    """Run a step that needs the model in a process that has never seen it. Raises its error."""
    (found,) = run_step("kvsync.demo.child", step, {**params, "home": str(home.root)}, silent)
    return found


def _refused_pulls(root: Path, a: DemoNode, artifact: str, other: dict[str, Any]) -> dict[str, str]:
    """Pulls into a fourth, empty home that must end with a refusal and leave it empty."""
    d = DemoNode("d", root / "d", Settings())
    a.meet(d, roles=("get",))
    d.meet(a)
    wrong = Fingerprints(
        Fingerprint.parse(FingerprintKind.COMPATIBILITY, other["compatibility"]),
        Fingerprint.parse(FingerprintKind.NUMERICS, other["numerics"]),
    )
    refusals = {"stranger's artifact pulled": _pull_code(d, artifact, None)}
    d.trust(a)
    refusals["pulled for other weights"] = _pull_code(d, artifact, wrong)
    with Store.open(a.home.store_dir) as store:
        path = chunk_file(a.home, store, ArtifactId(Digest.parse(artifact)))
    with flipped_byte(path):
        refusals["flipped byte at the provider"] = _pull_code(d, artifact, None)
    return refusals


def _pull_code(node: DemoNode, artifact: str, fingerprints: Fingerprints | None) -> str:
    with Store.open(node.home.store_dir) as store:
        work = pull(
            store,
            TrustList(node.home, node.keys.signer.public),
            node.peers.get("a"),
            artifact,
            keys=node.keys,
            settings=Settings(),
            fingerprints=fingerprints,
        )
        try:
            asyncio.run(work)
        except CodedError as error:
            return error.code
        return "accepted"
