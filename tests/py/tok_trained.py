"""Small tokenizers trained on the spot, one for each combination of components that tokenizer.json can describe: every
model, normaliser, pre-tokeniser, decoder and post-processor appears at least once, next to different neighbours. The
trainers are those of `tokenizers` and `sentencepiece`; what they make is deterministic enough here, because both sides
of a comparison read the same result."""

import functools
import io
import json
import random

import sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import tok_oracles
import tok_strings
from tok_prose import CODE, PROSE
from tok_quern import Tok

N = normalizers
P = pre_tokenizers
D = decoders


@functools.cache
def corpus():
    """Prose and code, whole and in cuts; no rare code points, so that merges and not characters fill the vocabulary."""
    r = random.Random("quern-train")
    lines = [line for group in PROSE.values() for line in group] + [
        line for text in CODE.values() for line in text.split("\n")
    ]
    return lines * 2 + [maker(r, []) for _ in range(700) for maker in (tok_strings.prose, tok_strings.code)]


def trained(model, trainer, normalizer=None, pre=None, decoder=None, post=None, added=(), edit=None):
    t = Tokenizer(model)
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    t.train_from_iterator(corpus(), trainer)
    t.add_tokens([a for a in added if not a.special])
    t.add_special_tokens([a for a in added if a.special])
    if decoder:
        t.decoder = decoder
    if post:
        t.post_processor = post(t) if callable(post) else post
    spec = json.loads(t.to_str())
    if edit:
        edit(spec)
    return spec


def bpe(vocab=1200, alphabet=(), model=None, special=("<unk>",), **kw):
    options = {"unk_token": "<unk>"} if model is None else model
    names = {k: options[k] for k in ("continuing_subword_prefix", "end_of_word_suffix") if k in options}
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(special),
        initial_alphabet=list(alphabet),
        show_progress=False,
        limit_alphabet=max(400, len(alphabet)),
        **names,
    )
    return trained(models.BPE(**options), trainer, **kw)


def byte_bpe(**kw):
    return bpe(
        alphabet=P.ByteLevel.alphabet(),
        model={},
        special=kw.pop("special", ("<|endoftext|>",)),
        decoder=D.ByteLevel(),
        **kw,
    )


def unigram(special=("<unk>", "<s>", "</s>"), **kw):
    trainer = trainers.UnigramTrainer(
        vocab_size=2500, special_tokens=list(special), unk_token="<unk>", show_progress=False
    )
    return trained(models.Unigram(), trainer, **kw)


def wordpiece(**kw):
    trainer = trainers.WordPieceTrainer(
        vocab_size=1500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False
    )
    return trained(
        models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40),
        trainer,
        decoder=kw.pop("decoder", D.WordPiece()),
        **kw,
    )


def wordlevel(**kw):
    return trained(
        models.WordLevel(unk_token="[UNK]"),
        trainers.WordLevelTrainer(vocab_size=3000, special_tokens=["[UNK]"], show_progress=False),
        **kw,
    )


def template(single, *names):
    return lambda t: processors.TemplateProcessing(
        single=single, special_tokens=[(n, t.token_to_id(n)) for n in names]
    )


ADDED = [
    AddedToken("<tool>", special=True),
    AddedToken("<tool>x", special=True),
    AddedToken("<mask>", lstrip=True, special=True),
    AddedToken("<r>", rstrip=True, special=True),
    AddedToken("<b>", lstrip=True, rstrip=True, special=False, normalized=False),
    AddedToken("word", single_word=True, special=False, normalized=False),
    AddedToken("<think>", special=False, normalized=False),
    AddedToken("naïve", special=False, normalized=True),
    AddedToken("  ", special=False, normalized=False),
    AddedToken("é", single_word=True, special=False, normalized=True),
    AddedToken("HTTP", special=False, normalized=True),
]


def byte_fallback(pre=None, normalizer=None, strip=True, extra=(), **kw):
    steps = [D.Replace("▁", " "), D.ByteFallback(), D.Fuse()] + ([D.Strip(" ", 1, 0)] if strip else [])

    def edit(spec):
        spec["model"].update(byte_fallback=True, fuse_unk=True)

    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    spec = bpe(special=special, pre=pre, normalizer=normalizer, decoder=D.Sequence(steps), edit=edit, **kw)
    spec["added_tokens"] = [t for t in spec["added_tokens"] if not t["content"].startswith("<0x")]
    return spec


PRE_GPT4 = P.Sequence(
    [P.Split(Regex(tok_oracles.O200K), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)]
)
SPM_NORM = N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")])

SPECS = {
    # byte-level BPE
    "gpt2": lambda: byte_bpe(pre=P.ByteLevel(add_prefix_space=False)),
    "gpt2 prefix space, roberta": lambda: byte_bpe(
        special=("<s>", "</s>"),
        pre=P.ByteLevel(add_prefix_space=True),
        post=lambda t: processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>"))),
    ),
    "nfc, o200k split": lambda: byte_bpe(normalizer=N.NFC(), pre=PRE_GPT4, added=ADDED),
    "digits then bytes": lambda: byte_bpe(
        pre=P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)])
    ),
    "digit runs, punctuation, bytes": lambda: byte_bpe(
        pre=P.Sequence([P.Digits(individual_digits=False), P.Punctuation(), P.ByteLevel(add_prefix_space=False)]),
        added=ADDED,
    ),
    "three splits (deepseek shape)": lambda: byte_bpe(
        pre=P.Sequence(
            [
                P.Split(Regex(r"\p{N}{1,3}"), "isolated"),
                P.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
                P.Split(Regex(tok_oracles.LLAMA3), "isolated"),
                P.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    ),
    "lowercase, accents stripped": lambda: byte_bpe(
        normalizer=N.Sequence([N.NFD(), N.Lowercase(), N.StripAccents()]),
        pre=P.ByteLevel(add_prefix_space=False),
        added=ADDED,
    ),
    "template both ends": lambda: byte_bpe(
        special=("<bos>", "<eos>", "<sep>"),
        pre=P.ByteLevel(add_prefix_space=False),
        post=template("<bos> <sep> $A <eos> <eos>", "<bos>", "<eos>", "<sep>"),
    ),
    # SentencePiece shapes
    "llama2 legacy": lambda: byte_fallback(normalizer=SPM_NORM, post=template("<s> $A", "<s>"), added=ADDED),
    "metaspace always": lambda: byte_fallback(pre=P.Metaspace(prepend_scheme="always"), added=ADDED),
    "metaspace first": lambda: byte_fallback(pre=P.Metaspace(prepend_scheme="first"), added=ADDED),
    "metaspace never, no split": lambda: byte_fallback(
        pre=P.Metaspace(prepend_scheme="never", split=False), strip=False
    ),
    "gemma": lambda: byte_fallback(
        normalizer=N.Replace(" ", "▁"),
        pre=P.Split(" ", "merged_with_previous"),
        strip=False,
        post=template("<s> $A </s>", "<s>", "</s>"),
    ),
    "metaspace decoder": lambda: bpe(pre=P.Metaspace(), decoder=D.Metaspace()),
    # character BPE
    "unknown kept apart": lambda: bpe(vocab=300, pre=P.Whitespace()),
    "unknown fused": lambda: bpe(vocab=300, pre=P.WhitespaceSplit(), edit=lambda s: s["model"].update(fuse_unk=True)),
    "no unknown": lambda: bpe(vocab=300, model={}, pre=P.Whitespace()),
    "end of word suffix": lambda: bpe(
        model={"unk_token": "<unk>", "end_of_word_suffix": "</w>"},
        normalizer=N.BertNormalizer(),
        pre=P.BertPreTokenizer(),
    ),
    "continuing prefix": lambda: bpe(
        model={"unk_token": "<unk>", "continuing_subword_prefix": "##"}, pre=P.Whitespace()
    ),
    # splitting
    "split removed": lambda: bpe(pre=P.Split(Regex(r"\s+"), "removed")),
    "split merged with previous": lambda: bpe(pre=P.Split(Regex(r"[\s\p{P}]"), "merged_with_previous")),
    "split merged with next": lambda: bpe(pre=P.Split(Regex(r"[\s\p{Lu}]"), "merged_with_next")),
    "split contiguous": lambda: bpe(pre=P.Split(Regex(r"\d|\p{S}"), "contiguous")),
    "split inverted": lambda: bpe(pre=P.Split(Regex(r"\w+|[^\w\s]+"), "removed", invert=True)),
    "split by a string": lambda: bpe(pre=P.Split("e", "isolated")),
    "split by a character": lambda: bpe(pre=P.CharDelimiterSplit(" ")),
    "punctuation contiguous": lambda: bpe(pre=P.Sequence([P.WhitespaceSplit(), P.Punctuation("contiguous")])),
    "punctuation removed": lambda: bpe(pre=P.Sequence([P.WhitespaceSplit(), P.Punctuation("removed")])),
    "fixed length": lambda: bpe(pre=P.FixedLength(length=5)),
    # normalisers
    "nfkc": lambda: bpe(normalizer=N.NFKC(), pre=P.Whitespace(), added=ADDED),
    "nfkd": lambda: bpe(normalizer=N.NFKD(), pre=P.Whitespace()),
    "nfd": lambda: bpe(normalizer=N.NFD(), pre=P.Whitespace()),
    "strip both": lambda: bpe(normalizer=N.Sequence([N.Strip(), N.Lowercase()]), pre=P.Whitespace(), added=ADDED),
    "strip right": lambda: bpe(normalizer=N.Strip(left=False, right=True), pre=P.Split(" ", "isolated")),
    "replace by regex": lambda: bpe(
        normalizer=N.Sequence([N.Replace(Regex(r"\s{2,}"), " "), N.Replace("''", '"'), N.Nmt()]), pre=P.Whitespace()
    ),
    "bert cased": lambda: bpe(
        normalizer=N.BertNormalizer(lowercase=False, strip_accents=True), pre=P.BertPreTokenizer()
    ),
    # Unigram
    "unigram metaspace": lambda: unigram(pre=P.Metaspace(), decoder=D.Metaspace(), post=template("$A </s>", "</s>")),
    "unigram nmt nfkc": lambda: unigram(
        normalizer=N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(" {2,}"), " ")]),
        pre=P.Sequence([P.WhitespaceSplit(), P.Metaspace()]),
        decoder=D.Metaspace(),
        added=ADDED,
    ),
    "unigram whole text": lambda: unigram(pre=P.Metaspace(prepend_scheme="never", split=False)),
    # WordPiece and WordLevel
    "bert uncased": lambda: wordpiece(
        normalizer=N.BertNormalizer(lowercase=True),
        pre=P.BertPreTokenizer(),
        post=lambda t: processors.BertProcessing(
            ("[SEP]", t.token_to_id("[SEP]")), ("[CLS]", t.token_to_id("[CLS]"))
        ),
    ),
    "bert template, no cleanup": lambda: wordpiece(
        normalizer=N.BertNormalizer(lowercase=False, handle_chinese_chars=False, clean_text=False),
        pre=P.BertPreTokenizer(),
        decoder=D.WordPiece(cleanup=False),
        post=template("[CLS] $A [SEP]", "[CLS]", "[SEP]"),
        added=ADDED,
    ),
    "wordpiece whitespace": lambda: wordpiece(normalizer=N.Lowercase(), pre=P.Whitespace()),
    "wordlevel": lambda: wordlevel(pre=P.Whitespace()),
    "wordlevel lower": lambda: wordlevel(
        normalizer=N.Sequence([N.NFKC(), N.Lowercase()]), pre=P.Sequence([P.WhitespaceSplit(), P.Digits(True)])
    ),
}


def spec_oracle(name):
    return tok_oracles.HfOracle(SPECS[name]())


# ---- trained by sentencepiece ----

SPM = {  # name: trainer options
    "spm unigram nmt_nfkc": {"model_type": "unigram"},
    "spm unigram nfkc_cf, bytes": {
        "model_type": "unigram",
        "normalization_rule_name": "nfkc_cf",
        "byte_fallback": True,
    },
    "spm unigram identity, all spaces": {
        "model_type": "unigram",
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["<x>", "  ", "你好"],
    },
    "spm bpe nmt_nfkc, bytes": {"model_type": "bpe", "byte_fallback": True},
    "spm bpe digits": {
        "model_type": "bpe",
        "split_digits": True,
        "byte_fallback": True,
        "user_defined_symbols": ["<think>", "</think>"],
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    "spm bpe suffix": {"model_type": "bpe", "treat_whitespace_as_suffix": True},
}


@functools.cache
def spm_model(name):
    out = io.BytesIO()
    lines = [line for line in corpus() if line.strip() and "\x00" not in line and "▁" not in line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=out,
        vocab_size=2000,
        character_coverage=0.98,
        num_threads=2,
        minloglevel=2,
        hard_vocab_limit=False,
        **SPM[name],
    )
    return out.getvalue()


def spm_oracle(name):
    return tok_oracles.SpmOracle(spm_model(name))


def t5_gguf_oracle():
    """A Unigram model in GGUF, as for T5: pieces, scores and the compiled character map."""
    model = spm_model("spm unigram nmt_nfkc")
    parts = tok_oracles.read_model(model)
    pieces, scores, types = zip(*parts["pieces"])
    quern = Tok.from_gguf(
        "t5",
        "default",
        pieces,
        scores,
        types,
        roles={"bos": 1, "eos": 2, "unk": 0},
        charsmap=parts["charsmap"],
        flags={"add_bos": False, "add_eos": True, "add_space_prefix": True, "remove_extra_whitespaces": True},
    )
    oracle = tok_oracles.SpmOracle(model, quern)
    oracle.modes = [(False, False)]
    return oracle


def precompiled_json_oracle():
    """XLM-R's shape: sentencepiece's compiled character map inside a tokenizer.json, Metaspace, Unigram."""
    import base64

    parts = tok_oracles.read_model(spm_model("spm unigram nmt_nfkc"))
    spec = SPECS["unigram metaspace"]()
    spec["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(parts["charsmap"]).decode()},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ],
    }
    spec["model"] = {
        "type": "Unigram",
        "unk_id": 0,
        "byte_fallback": False,
        "vocab": [[p, s] for p, s, _ in parts["pieces"]],
    }
    spec["post_processor"] = None
    spec["added_tokens"] = [tok_oracles.added(n, i) for i, n in enumerate(["<unk>", "<s>", "</s>"])]
    return tok_oracles.HfOracle(spec)
