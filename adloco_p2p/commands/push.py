"""Uploads an exported directory to the hub, only where `export --push` asks for it."""

from pathlib import Path

from adloco_p2p.config.hub_reach import is_hub_reachable
from adloco_p2p.errors import ConfigError, SwarmError, brief

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 300.0
"""How long the hub may be silent; it takes minutes to store many files."""


def check_push(repo: str) -> None:
    """Raise ConfigError or SwarmError, before anything is written, where an upload cannot work: a wrong name, no token, or no
    hub."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"--push {repo}: {error}; write owner/name", code="E200") from error
    token = get_token()
    if token is None:
        raise ConfigError(f"--push {repo}: there is no token of the hub on this machine", code="E224")
    if not token.isascii():
        raise ConfigError(f"--push {repo}: the token of the hub on this machine has characters that no token has", code="E224")
    if not is_hub_reachable():
        raise SwarmError(f"--push {repo}: the hub cannot be reached, or HF_HUB_OFFLINE is set", code="E330")


def push(directory: Path, repo: str, *, message: str) -> str:
    """Upload every file of the directory as one commit, into a new private repository where there is none, and return the
    commit's address. Raises ConfigError where the hub refuses the token, and SwarmError where it does not take the files."""
    from huggingface_hub import HfApi, get_session
    from huggingface_hub.errors import HfHubHTTPError

    get_session().timeout = (CONNECT_SECONDS, ANSWER_SECONDS, ANSWER_SECONDS, None)  # the library has none of its own
    api = HfApi()
    try:
        api.create_repo(repo, private=True, exist_ok=True)
        return str(api.upload_folder(repo_id=repo, folder_path=directory, commit_message=message).commit_url)
    except HfHubHTTPError as error:
        reason = f"--push {repo}: {brief(error)}; the export lies in {directory}"
        if error.response.status_code in (401, 403):
            raise ConfigError(reason, code="E224") from error
        raise SwarmError(reason, code="E330") from error
    except Exception as error:  # of the connection or a file; of any type where another server answers, as in a hotel
        first = error.__cause__ or error  # the library's own error names the file that was not uploaded, its cause the reason
        reason = f"{type(first).__name__}: {brief(first)}"
        raise SwarmError(f"--push {repo}: {reason}; the export lies in {directory}", code="E330") from error
