"""Small real tokenizers, one for each way in which model families treat text and added tokens.

All have the same markup as added tokens, as far as their family can; `MAKERS` lists them by name.
"""

import json
from collections.abc import Callable
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.trainers import (
    BpeTrainer,
    UnigramTrainer,
    WordLevelTrainer,
    WordPieceTrainer,
)
from transformers import PreTrainedTokenizerFast

from gymnast.agents.loading.tiny import CHAT_TEMPLATE

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
MARKUP = [
    *("<|turn|>", "<|end|>", "<|thought|>", "<|/thought|>", "<|action|>", "<|/action|>"),
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<tool_call>", "</tool_call>", '<|"|>', "<b>"),
]
CORPUS = [
    "system user assistant What is three plus four? The answer is 7, isn't it?",
    "<|im_end|> <tool_call> </s> {} [] : , ' \" ö é 中 say word words text result",
    json.dumps({"type": "function", "function": {"name": "add", "parameters": {}}}),
    "".join(map(chr, range(32, 127))),
    " ".join(map(chr, range(33, 127))),
]
SPACE = "\u2581"


def _train(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return tokenizer


def _wrapped(tokenizer: Tokenizer, **settings: Any) -> Any:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
        **settings,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.add_tokens([*MARKUP, AddedToken("<|eats|>", lstrip=True, rstrip=True)])
    fast.add_tokens(
        [
            AddedToken("<|eats_special|>", special=True, lstrip=True, rstrip=True),
            AddedToken("<|word|>", single_word=True),
            AddedToken("<|exact|>", normalized=False),
            AddedToken("<|normal|>", special=True, normalized=True),
            AddedToken("<|im_end|>more", special=True),
            AddedToken(f"{SPACE}<PRE>", normalized=False),
            AddedToken("  ", normalized=False),
        ],
    )
    return fast


def _byte_level_bpe(**settings: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**settings))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_trainer() -> Any:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )


def gpt2() -> Any:
    """Byte-level BPE, which writes a space before the text and trims offsets."""
    tokenizer = _byte_level_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return _wrapped(_train(tokenizer, _byte_trainer()))


def qwen() -> Any:
    """Byte-level BPE on composed characters."""
    tokenizer = _byte_level_bpe()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _wrapped(_train(tokenizer, _byte_trainer()))


def llama3() -> Any:
    """Byte-level BPE in which words of the vocabulary need no merges; BOS by a post-processor."""
    tokenizer = _byte_level_bpe(ignore_merges=True)
    pieces = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    _train(tokenizer, _byte_trainer())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return _wrapped(tokenizer, bos_token="<s>")


def gaps() -> Any:
    """Ids beyond the number of tokens."""
    tokenizer = _byte_level_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    state = json.loads(_train(tokenizer, _byte_trainer()).to_str())
    state["model"]["vocab"][SPECIAL[-1]] = 1000  # whose old id stays empty
    state["added_tokens"][-1]["id"] = 1000
    return _wrapped(Tokenizer.from_str(json.dumps(state)))


def _with_bytes(tokenizer: Tokenizer) -> Tokenizer:
    """The same with tokens for the bytes of what the vocabulary lacks."""
    state = json.loads(tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    state["model"] |= {"byte_fallback": True, "fuse_unk": True}
    return Tokenizer.from_str(json.dumps(state))


def _sentencepiece_bpe() -> Any:
    return Tokenizer(models.BPE(unk_token="<unk>"))


def _piece_trainer() -> Any:
    return BpeTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)


def llama2() -> Any:
    """SentencePiece's BPE as first converted: a normalizer writes a space before every piece."""
    tokenizer = _sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _wrapped(_with_bytes(_train(tokenizer, _piece_trainer())), unk_token="<unk>")


def metaspace(scheme: str) -> Callable[[], Any]:
    """SentencePiece's BPE as converted today."""

    def make() -> Any:
        tokenizer = _sentencepiece_bpe()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace(SPACE, " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                *([] if scheme == "never" else [decoders.Strip(" ", 1, 0)]),
            ]
        )
        return _wrapped(_with_bytes(_train(tokenizer, _piece_trainer())), unk_token="<unk>")

    return make


def gemma() -> Any:
    """SentencePiece's BPE with spaces as they are; tags and white space are added tokens.

    They are in the vocabulary too, and spaces are merged there.
    """
    tokenizer = _sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    _train(tokenizer, _piece_trainer())
    state = json.loads(_with_bytes(tokenizer).to_str())
    vocabulary = state["model"]["vocab"]
    for piece in (SPACE * 2, SPACE * 4, "\n", "\n\n", "<h1>", "<tool_call>", "[INST]"):
        vocabulary.setdefault(piece, len(vocabulary))
    state["model"]["merges"] += [[SPACE, SPACE], [SPACE * 2, SPACE * 2], ["\n", "\n"]]
    fast = _wrapped(Tokenizer.from_str(json.dumps(state)), unk_token="<unk>")
    white = [SPACE * 2, SPACE * 4, "\n\n"]
    fast.add_tokens([AddedToken(piece, normalized=False) for piece in [*white, "<h1>"]])
    return fast


def _unigram(tokenizer: Tokenizer) -> Any:
    trainer = UnigramTrainer(
        vocab_size=180,
        special_tokens=[*SPECIAL, f"{SPACE}<PRE>"],
        unk_token="<unk>",
        show_progress=False,
    )
    return _wrapped(_train(tokenizer, trainer), unk_token="<unk>")


def t5() -> Any:
    """Unigram, whose vocabulary spells its special tokens; spaces are squeezed."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return _unigram(tokenizer)


def albert() -> Any:
    """Unigram that lower-cases, strips accents and rewrites quotes."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace("``", '"'),
            normalizers.Replace("''", '"'),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return _unigram(tokenizer)


def plain_unigram() -> Any:
    """Unigram with nothing before its text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    return _unigram(tokenizer)


def bert() -> Any:
    """WordPiece: control and private characters, accents and capitals are dropped."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    return _wrapped(_train(tokenizer, trainer), unk_token="<unk>")


def words() -> Any:
    """Whole words, the special tokens among them; the wrapper does not know which is unknown."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = WordLevelTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    return _wrapped(_train(tokenizer, trainer))


MAKERS: dict[str, Callable[[], Any]] = {
    "gpt2": gpt2,
    "qwen": qwen,
    "llama3": llama3,
    "gaps": gaps,
    "llama2": llama2,
    "metaspace_first": metaspace("first"),
    "metaspace_always": metaspace("always"),
    "metaspace_never": metaspace("never"),
    "gemma": gemma,
    "t5": t5,
    "albert": albert,
    "plain_unigram": plain_unigram,
    "bert": bert,
    "words": words,
}
# What a tokenizer can write again as it was. The others lose what they lack or fold, by design.
EXACT = ("qwen", "llama3", "gaps", "metaspace_never", "gemma")
EXACT_BUT_FOR_SPACES = ("gpt2", "llama2", "metaspace_first", "metaspace_always")


def of_family(tokenizer: Any, family: str) -> Any:
    """A tokenizer of another family, with the chat template and added tokens of a given one."""
    fast = MAKERS[family]()
    tokens = tokenizer.added_tokens_decoder
    fast.add_tokens([tokens[number] for number in sorted(tokens)])
    for name, content in tokenizer.special_tokens_map.items():
        setattr(fast, name, content)
    fast.chat_template = tokenizer.chat_template
    fast.name_or_path = f"{tokenizer.name_or_path} ({family})"
    return fast
