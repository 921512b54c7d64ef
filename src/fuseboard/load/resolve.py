"""From what a user calls a model to a path on this machine."""

from pathlib import Path

from fuseboard.core.errors import LoadError
from fuseboard.load.catalogue import CATALOGUE
from fuseboard.load.fetch import fetch_model

HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]
HUB_IGNORED = ["original/*", "consolidated*", "onnx/*"]
HUB_TIMEOUT_S = 10.0


def resolve_model(name: str, *, revision: str | None = None) -> Path:
    """The model's folder or GGUF file.

    `name` is a path, an entry of the catalogue, or a hub id: `owner/model`, `owner/model@revision`, or
    `owner/model/file.gguf`. Raises `LoadError` when there is no such thing or it cannot be fetched.
    """
    path = Path(name).expanduser()
    if path.exists():
        if revision:
            raise LoadError(f"'{name}' is a local path, so the revision '{revision}' means nothing; leave it out.")
        return path
    if name in CATALOGUE:
        if revision:
            raise LoadError(f"The catalogue pins the model '{name}'; leave the revision '{revision}' out.")
        return fetch_model(CATALOGUE[name])
    if looks_like_hub_id(name):
        repo, _, tag = name.partition("@")
        return fetch_from_hub(repo, revision or tag or None)
    raise LoadError(
        f"There is no file, folder or catalogue model called '{name}'; give a path, a hub id such as owner/model, or "
        f"one of {', '.join(CATALOGUE)}."
    )


def looks_like_hub_id(name: str) -> bool:
    parts = name.partition("@")[0].split("/")
    if len(parts) == 3 and not parts[2].endswith(".gguf"):
        return False
    return len(parts) in (2, 3) and all(parts) and parts[0] not in (".", "..", "~") and not parts[1].endswith(".gguf")


def fetch_from_hub(repo: str, revision: str | None) -> Path:
    """A snapshot of the hub repository (or one GGUF file of it) in the hub's own cache; honours its offline mode."""
    import huggingface_hub

    owner, model, *file = repo.split("/")
    repo = f"{owner}/{model}"
    try:
        if file:
            return Path(huggingface_hub.hf_hub_download(repo, file[0], revision=revision, etag_timeout=HUB_TIMEOUT_S))
        folder = huggingface_hub.snapshot_download(
            repo,
            revision=revision,
            allow_patterns=HUB_PATTERNS,
            ignore_patterns=HUB_IGNORED,
            etag_timeout=HUB_TIMEOUT_S,
        )
        return Path(folder)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise LoadError(
            f"The hub model '{repo}'{f' at {revision}' if revision else ''} is neither cached here nor could it be "
            f"downloaded ({type(error).__name__}: {reason[0] if reason else 'no reason given'}); check the name and "
            f"the network, or give a local path."
        ) from error
