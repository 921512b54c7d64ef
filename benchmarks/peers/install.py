"""Peers in environments of their own under the cache folder; nothing is touched that is there already."""

import shutil
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.process import PeerError, run

from fuseboard.core.env import cache_dir

LLAMA = "llama-cpp-python==0.3.36"
TOOLS = ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-perplexity")
CMAKE = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DGGML_OPENMP=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
BROKEN = "    _tile_loadconfig(&tc);"
REPAIRED = '    __asm__ volatile("" : : "r"(&tc) : "memory");\n' + BROKEN
"""GCC 12 takes most of the structure's stores for dead and drops them, and the next tile instruction is illegal."""

ENVIRONMENTS = {
    "openvino": ("openvino-genai==2026.4.1.0",),
    "transformers": ("torch==2.13.0", "transformers==5.24.0", "accelerate==1.15.0", "gguf==0.19.0"),
}
BUILD_TIMEOUT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Home:
    """Where the peers live."""

    root: Path

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def build(self) -> Path:
        return self.root / "build-llama"

    def tool(self, name: str) -> Path:
        return self.build / "bin" / name

    def python(self, environment: str) -> Path:
        return self.root / environment / "bin" / "python"


def home() -> Home:
    return Home(root=cache_dir() / "peers")


def install(name: str, jobs: int) -> str:
    """Make sure that the environment `llama`, `openvino` or `transformers` is there; its versions. PeerError if not."""
    return install_llama(home(), jobs) if name == "llama" else install_environment(home(), name)


def install_llama(at: Home, jobs: int) -> str:
    """llama.cpp with its own tools, built for this machine from the source package that carries it."""
    if all(at.tool(name).exists() for name in TOOLS):
        return LLAMA
    if shutil.which("cmake") is None:
        raise PeerError("llama.cpp cannot be built because cmake is missing.")
    _say(f"building {LLAMA} (about 10 minutes)")
    sources = at.root / "src"
    sources.mkdir(parents=True, exist_ok=True)
    _pip(Path(sys.executable), "download", "--no-deps", "--no-binary", ":all:", "--dest", str(sources), LLAMA)
    archive = next(sources.glob(f"llama_cpp_python-{LLAMA.partition('==')[2]}*.tar.gz"))
    with tarfile.open(archive) as tar:
        tar.extractall(sources, filter="data")
    tree = sources / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
    tiles = tree / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp"
    tiles.write_text(tiles.read_text().replace(BROKEN, REPAIRED))
    run(["cmake", "-S", str(tree), "-B", str(at.build), *CMAKE], timeout_s=BUILD_TIMEOUT_S)
    make = ["cmake", "--build", str(at.build), "--parallel", str(jobs), "--target", *TOOLS]
    run(make, timeout_s=BUILD_TIMEOUT_S)
    return LLAMA


def install_environment(at: Home, name: str) -> str:
    """A virtual environment with pinned packages."""
    wanted = " ".join(ENVIRONMENTS[name])
    mark = at.root / name / "installed"
    if mark.exists() and mark.read_text() == wanted:
        return wanted
    _say(f"installing {wanted}")
    run([sys.executable, "-m", "venv", str(at.root / name)], timeout_s=BUILD_TIMEOUT_S)
    _pip(at.python(name), "install", "--quiet", *ENVIRONMENTS[name])
    mark.write_text(wanted)
    return wanted


def gguf(at: Home, shipped: Path, kind: str) -> Path:
    """The model's file as shipped, or re-quantised by the peer's own tool from its float32 values."""
    if kind == "shipped":
        return shipped
    target = at.models / f"{shipped.stem}.{kind}.gguf"
    if target.exists():
        return target
    source = shipped if kind == "F32" else gguf(at, shipped, "F32")
    _say(f"writing {target.name}")
    at.models.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    tool = str(at.tool("llama-quantize"))
    run([tool, "--allow-requantize", str(source), str(part), kind], timeout_s=BUILD_TIMEOUT_S)
    part.replace(target)
    return target


def _pip(python: Path, *arguments: str) -> None:
    run([str(python), "-m", "pip", *arguments], timeout_s=BUILD_TIMEOUT_S)


def _say(text: str) -> None:
    print(f"[peers] {text}", file=sys.stderr, flush=True)
