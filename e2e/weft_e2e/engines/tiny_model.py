"""Make a small random Llama with tokenizer and chat template: ``tiny_model.py FOLDER``, run by the engines' Python.

Its weights are saved, so every engine has the same; where each makes up its own, equal answers prove nothing.
The tokenizer has a token per printable ASCII character and nothing joins: text that comes from ids gives these ids
again, so that a client's history is what the engine saw. No greedy answer ever holds a special token or ends early.
"""

import json
import string
import sys
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 20260201
CONTEXT = 4096
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
SPECIAL = ("<|unknown|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
SPREAD = 0.12
"""Standard deviation of the weights: large enough that an answer depends on all of its history."""

TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + (message['content'] or '') + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make(folder: Path) -> None:
    """Write model, tokenizer and chat template into ``folder``."""
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(folder)
    _model(len(tokenizer)).save_pretrained(folder, safe_serialization=True)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.eos_token_id}))


def _tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate([*CHARACTERS, *SPECIAL])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=SPECIAL[0]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=SPECIAL[0],
        eos_token=SPECIAL[1],
        pad_token=SPECIAL[1],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )


def _model(words: int) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=words,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            initializer_range=SPREAD,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=len(CHARACTERS) + 1,
        )
    )
    with torch.no_grad():
        # Their score is 0, and the best of 96 random ones is above: the greedy choice is never a special token.
        model.lm_head.weight[len(CHARACTERS) :] = 0
    return model


if __name__ == "__main__":
    make(Path(sys.argv[1]))
