"""A 0.9M-parameter model and its tokenizer, built on the spot in under a second.

For tests, examples and measuring overhead: everything about it is real (a Qwen3 decoder, a
byte-level BPE, a chat template with tools) except that it knows nothing. A run on it proves
plumbing, not learning.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

# ChatML with tools: schemas in the system turn, calls as JSON objects between <tool_call> tags,
# results in user turns between <tool_response> tags.
CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
{{- 'Tools:\\n' }}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{% endfor %}
{{- 'Call one with <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set call = call.function or call %}
{%- if message.content or not loop.first %}{{- '\\n' }}{% endif %}
{{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
{{- (call.arguments if call.arguments is string else call.arguments | tojson) + '}' }}
{{- '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- elif message.role != 'system' or not loop.first %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# As in Qwen's tokenizers, the call markup is made of added tokens that are not special.
MARKUP_TOKENS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def _corpus() -> Iterator[str]:
    names = ["add", "multiply", "search", "read_file", "final_answer"]
    types = ["integer", "number", "string", "boolean"]
    for name, kind, number in itertools.product(names, types, range(0, 100, 7)):
        yield f"What is {number} plus {number + 3}? Call the function {name} to get the answer."
        yield f'{{"name": "{name}", "arguments": {{"a": {number}, "b": "{number}"}}}}\n'
        yield f'{{"type": "{kind}", "description": "The value of {name}."}}, "required": ["a"]'
        yield f"system\nuser\nassistant\nThe answer is {number}. The result was an error: wrong"
    for number in range(1000):
        yield f"{number} and {number}"


def tiny_tokenizer(vocab_size: int = 1030) -> Any:
    """Train a byte-level BPE on text made here, with a chat template that takes tools.

    Args:
        vocab_size: How many tokens at most, the added ones included.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKUP_TOKENS),
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    fast.add_tokens(MARKUP_TOKENS)
    return fast


def tiny_model(vocab_size: int = 1030, *, seed: int = 0, **overrides: Any) -> Any:
    """A randomly initialised Qwen3 of 0.9M parameters in fp32.

    Args:
        vocab_size: Rows of the embedding.
        seed: Of the initialisation; the global random state is left as it was.
        **overrides: Fields of `Qwen3Config`.
    """
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(**(settings | overrides)))
    return model.eval()
